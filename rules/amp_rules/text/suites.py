"""Carrying out what is done to the statements of a suite: they are wrapped, taken out, unwrapped, and get company."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import libcst as cst

from amp_rules.text.actions import Action, Insert, Join, Remove, Unwrap, Wrap
from amp_rules.text.conditions import with_test
from amp_rules.text.indentation import Indentation
from amp_rules.text.places import Place, Places
from amp_rules.text.rows import (
    below_suites,
    blank_lines_above,
    block,
    is_import,
    left_of_suite,
    lines_apart,
    one_line_each,
    parsed,
    set_apart,
    statements_of_suites,
    with_docstrings_moved,
    with_two_blank_lines,
    with_two_lines_above,
    without_blank_lines_above,
    without_trailing_space,
)


class Suites:
    """Rebuilds suites. The four actions meet at one statement, so that one place must know of all."""

    def __init__(self, actions: Sequence[Action], places: Places, indentation: Indentation, done: set[int]) -> None:
        self._places = places
        self._indentation = indentation
        self._done = done
        self._carried: list[cst.EmptyLine] = []
        self._emptied: list[cst.IndentedBlock] = []
        self._apart: list[tuple[cst.BaseStatement, cst.BaseStatement]] = []
        self._inserts: defaultdict[Place, list[Insert]] = defaultdict(list)
        self._wraps: defaultdict[Place, list[Wrap]] = defaultdict(list)
        self._removals: defaultdict[Place, list[Remove]] = defaultdict(list)
        self._unwraps: dict[Place, Unwrap] = {}
        self._joins: defaultdict[Place, list[Join]] = defaultdict(list)
        self._last: cst.BaseStatement | None = None
        self._below_function = False
        for action in actions:
            if isinstance(action, Insert):
                self._inserts[places.of_statement(action.statement)].append(action)
            elif isinstance(action, Join):
                self._joins[places.of_statement(action.statement)].append(action)
            elif isinstance(action, Wrap):
                self._wraps[places.of_statement(action.first)].append(action)
            elif isinstance(action, Remove):
                self._removals[places.of_statement(action.statement)].append(action)
            elif isinstance(action, Unwrap):
                self._unwraps[places.of_statement(action.statement)] = action
        self._ends = {places.of_statement(wrap.last) for wraps in self._wraps.values() for wrap in wraps}
        """Where blocks that are put around statements end."""
        self._touched = {*self._inserts, *self._wraps, *self._removals, *self._unwraps, *self._ends}

    def block(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        """A suite of its own lines, with a ``pass`` where nothing is left of it."""
        body = self.suite(original_node.body, updated_node.body)
        if body is None:
            return updated_node
        if body and self._places.start_of_row(original_node.body[0]) in self._removals:
            body[0] = without_blank_lines_above(body[0])
        if not body:
            emptied = updated_node.with_changes(body=[cst.parse_statement("pass\n")])
            self._emptied.append(emptied)
            return emptied
        return updated_node.with_changes(body=body)

    def one_line(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        """A suite on the line of its head: ``if x: y()``."""
        if not any(self._places.start(item) in self._touched for item in original_node.body):
            return updated_node
        # ``if x: y()`` on one line has no room for more: it becomes a block.
        lines = [
            cst.SimpleStatementLine([item.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)])
            for item in updated_node.body
        ]
        body = self.suite(original_node.body, lines)
        return cst.IndentedBlock(
            body if body is not None else lines,
            header=updated_node.trailing_whitespace,
            indent=self._step(self._places.start(original_node)),
        )

    def branch(self, original_node: cst.If, updated_node: cst.If) -> cst.If:
        """An ``elif`` stands in no suite: what happens to it happens here. An ``else`` left empty goes."""
        for join in self._joins.get(self._places.start(original_node) or (0, 0), ()):
            self._done.add(id(join))
            updated_node = with_test(updated_node, join)
        last = updated_node.orelse
        if isinstance(last, cst.Else) and any(block is last.body for block in self._emptied):
            if not any(line.comment for line in (*last.leading_lines, *getattr(last.body, "footer", ()))):
                return updated_node.with_changes(orelse=None)
        if not isinstance(original_node.orelse, cst.If) or not isinstance(updated_node.orelse, cst.If):
            return updated_node
        place = self._places.start(original_node.orelse)
        branch = updated_node.orelse
        if place in self._removals:
            self._finish_removal(place)
            return updated_node.with_changes(orelse=branch.orelse)
        if place in self._unwraps:
            unwrap = self._unwraps[place]
            self._done.add(id(unwrap))
            if unwrap.suites == ("orelse",):
                return updated_node.with_changes(orelse=branch.orelse)
            return updated_node.with_changes(orelse=cst.Else(branch.body, leading_lines=branch.leading_lines))
        return updated_node

    def suite(self, original: Sequence[cst.CSTNode], updated: Sequence[cst.CSTNode]) -> list[cst.BaseStatement] | None:
        """The suite with its insertions, wraps and removals; None when it has none."""
        rows: list[tuple[Place | None, cst.BaseStatement]] = []
        concerned = False
        for old, new in zip(original, updated, strict=True):
            place = self._places.start_of_row(old)
            if (
                isinstance(old, cst.SimpleStatementLine)
                and isinstance(new, cst.SimpleStatementLine)
                and len(old.body) > 1
            ):
                places = [self._places.start(item) for item in old.body]
                touched = [item for item in places if item in self._touched]
                if touched:
                    concerned = True
                    if len(touched) == 1 and self._stands_beside(touched[0], places):
                        rows.append((touched[0], new))
                    else:
                        rows.extend(zip(places, one_line_each(new), strict=True))
                    continue
            concerned = concerned or place in self._touched
            rows.append((place, new))  # type: ignore[arg-type]
        if not concerned:
            return None
        return self._rebuild(rows)

    def _stands_beside(self, place: Place | None, line: list[Place | None]) -> bool:
        """Whether all that happens at a statement of ``a; b`` is that lines come above or below the whole line."""
        if place is None or any(place in it for it in (self._wraps, self._removals, self._unwraps, self._ends)):
            return False
        return all(place == line[-1 if item.after else 0] for item in self._inserts[place])

    def _rebuild(self, rows: list[tuple[Place | None, cst.BaseStatement]]) -> list[cst.BaseStatement]:
        index_of = {place: index for index, (place, _) in enumerate(rows) if place is not None}
        spans: list[tuple[int, int, Wrap]] = []
        for place, index in index_of.items():
            for wrap in self._wraps.get(place, ()):
                end = index_of.get(self._places.of_statement(wrap.last))
                if end is not None and end >= index:
                    spans.append((index, end, wrap))
                    self._done.add(id(wrap))
        spans.sort(key=lambda span: (span[0], -span[1]))
        self._apart.clear()
        self._last = rows[-1][1] if rows else None
        if all(line.comment is None for line in self._carried):
            self._carried = []
        return set_apart(self._emit(rows, 0, len(rows) - 1, spans, None), self._apart)

    def _emit(
        self,
        rows: list[tuple[Place | None, cst.BaseStatement]],
        first: int,
        last: int,
        spans: list[tuple[int, int, Wrap]],
        inside: Wrap | None,
    ) -> list[cst.BaseStatement]:
        found: list[cst.BaseStatement] = []
        index = first
        while index <= last:
            span = next((item for item in spans if item[0] == index and item[1] <= last), None)
            if span is None:
                found.extend(self._row(*rows[index]))
                index += 1
                continue
            start, end, wrap = span
            remaining = [item for item in spans if item is not span]
            # What goes before or after a statement at the edge of a block stays outside of it.
            before, after = self._before(rows[start][0]), self._after(rows[end][0])
            inner = self._emit(rows, start, end, remaining, wrap)
            whole = self._put_above(before, block(wrap.header, inner, self._step(rows[start][0])), rows[start][0])
            found.extend([*before, whole, *after])
            index = end + 1
        return found

    def _row(self, place: Place | None, statement: cst.BaseStatement) -> list[cst.BaseStatement]:
        kept: list[cst.BaseStatement] = []
        below: list[cst.EmptyLine] = []
        if self._below_function:
            statement = with_two_lines_above(statement)
            self._below_function = False
        if self._carried and hasattr(statement, "leading_lines"):
            above = self._carried
            if all(line.comment is None for line in above):
                above = above[len(blank_lines_above(statement)) :]
            statement = statement.with_changes(leading_lines=[*above, *statement.leading_lines])
            self._carried = []
        if place in self._removals:
            lines = list(getattr(statement, "leading_lines", ()))
            if not self._finish_removal(place):
                lines = lines_apart(lines)
            # A gap stays where the statement below it goes.
            self._carried = lines if any(line.comment is not None for line in lines) else blank_lines_above(statement)
            below = left_of_suite(statement, self._indentation.default, place[1] if place is not None else 0)
            self._carried += below
        elif place in self._unwraps:
            unwrap = self._unwraps[place]
            self._done.add(id(unwrap))
            step = self._step(place)
            kept = [
                without_trailing_space(with_docstrings_moved(item, step))
                for item in statements_of_suites(statement, unwrap.suites)
            ]
            if kept and statement is not self._last:
                self._carried = below_suites(statement, unwrap.suites)
            if kept and place is not None and place[1] == 0:
                kept[0] = with_two_blank_lines(kept[0])
        else:
            kept = [statement]
        before = self._before(place)
        if kept:
            kept[0] = self._put_above(before, kept[0], place)
        elif before and hasattr(statement, "leading_lines"):
            self._carried = below
            # The new lines stand for the old statement, under its comments.
            before[0] = before[0].with_changes(leading_lines=statement.leading_lines)
            last = before[-1]
            if isinstance(statement, cst.SimpleStatementLine) and isinstance(last, cst.SimpleStatementLine):
                if statement.trailing_whitespace.comment is not None:
                    before[-1] = last.with_changes(trailing_whitespace=statement.trailing_whitespace)
            if self._wants_gap(place):
                self._apart.append((before[0], before[-1]))
        after = self._below(statement, self._after(place), self._inserts.get(place, []) if place is not None else [])
        if after and not kept and not before and self._carried and is_import(statement):
            # A new import stands in the place of the old one.
            after[0] = after[0].with_changes(leading_lines=[*self._carried, *getattr(after[0], "leading_lines", ())])
            self._carried = []
        is_function = bool(after) and isinstance(after[-1], cst.FunctionDef)
        self._below_function = is_function and place is not None and place[1] == 0
        return [*before, *kept, *after]

    @staticmethod
    def _below(
        statement: cst.BaseStatement, after: list[cst.BaseStatement], inserts: Sequence[Insert]
    ) -> list[cst.BaseStatement]:
        """New lines that stand apart, with a blank line above them where they follow a block."""
        is_block = not isinstance(statement, cst.SimpleStatementLine)
        if not after or not is_block or not any(item.gap and item.after for item in inserts):
            return after
        first = after[0]
        if blank_lines_above(first) or not hasattr(first, "leading_lines"):
            return after
        return [first.with_changes(leading_lines=[cst.EmptyLine(indent=False), *first.leading_lines]), *after[1:]]

    def _put_above(
        self, before: list[cst.BaseStatement], kept: cst.BaseStatement, place: Place | None
    ) -> cst.BaseStatement:
        """Hand the blank lines above a statement to the new lines, which are changed in place; the comment stays."""
        if not before or not hasattr(kept, "leading_lines"):
            return kept
        lines = list(kept.leading_lines)
        blank = next((index for index, line in enumerate(lines) if line.comment is not None), len(lines))
        last = max((index for index, line in enumerate(lines) if line.comment is None), default=0)
        if last > blank and not self._wants_gap(place):
            blank = last + 1  # a comment that stands apart, such as code that was taken out, is of what is above it
        above, rest = lines[:blank], lines[blank:]
        if place is not None and any(item.commented and not item.after for item in self._inserts.get(place, ())):
            above, rest = lines, []
        if self._wants_gap(place):
            is_definition = isinstance(kept, (cst.FunctionDef, cst.ClassDef))
            # Style of its own where there is one: the first statement of a file has no blank lines above it yet.
            at_least = 2 if place is not None and place[1] == 0 and not above else 1
            of_functions = 2 if place is not None and place[1] == 0 and isinstance(before[-1], cst.FunctionDef) else 1
            wanted = max(at_least, len(above)) if is_definition else of_functions
            have = next((index for index, line in enumerate(rest) if line.comment is not None), len(rest))
            if is_definition and len(above) > 1:
                rest, have, above = [*above[1:], *rest], have + len(above) - 1, above[:1]
            rest = [cst.EmptyLine(indent=False)] * max(0, wanted - have) + rest
        before[0] = before[0].with_changes(leading_lines=above or getattr(before[0], "leading_lines", []))
        return kept.with_changes(leading_lines=rest)

    def _wants_gap(self, place: Place | None) -> bool:
        return place is not None and any(item.gap and not item.after for item in self._inserts.get(place, ()))

    def _before(self, place: Place | None) -> list[cst.BaseStatement]:
        return self._inserted(place, after=False)

    def _after(self, place: Place | None) -> list[cst.BaseStatement]:
        return self._inserted(place, after=True)

    def _inserted(self, place: Place | None, *, after: bool) -> list[cst.BaseStatement]:
        found: list[cst.BaseStatement] = []
        if place is None:
            return found
        chosen = [item for item in self._inserts.get(place, ()) if item.after is after and id(item) not in self._done]
        for item in sorted(chosen, key=lambda item: item.order):
            self._done.add(id(item))
            found.extend(parsed(item.lines, self._step(place)))
        return found

    def _step(self, place: Place | None) -> str:
        """By how much a new block at a place stands further right than its head."""
        return self._indentation.at(place[0]) if place is not None else self._indentation.default

    def _finish_removal(self, place: Place | None) -> bool:
        """Notes that a removal took place; returns whether the comments stay."""
        actions = self._removals.get(place, ()) if place is not None else ()
        self._done.update(id(action) for action in actions)
        return any(action.keep_comments for action in actions)
