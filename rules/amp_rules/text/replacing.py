"""Carrying out replacements of expressions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import libcst as cst

from amp_rules.text.actions import Action, Replace
from amp_rules.text.expression_edits import Shift
from amp_rules.text.places import Extent, Places, same_kind


class Replacing:
    """Replaces expressions; comments that had their place inside of one go above its statement."""

    def __init__(self, actions: Sequence[Action], places: Places, done: set[int]) -> None:
        self._places = places
        self._done = done
        self._homeless: list[cst.Comment] = []
        self._replacements: defaultdict[Extent, list[Replace]] = defaultdict(list)
        for action in actions:
            if isinstance(action, Replace):
                self._replacements[places.of_expression(action.node)].append(action)

    def left(self, original: cst.CSTNode, updated: object) -> object:
        """What becomes of a node once its children are done."""
        if self._replacements and isinstance(original, cst.BaseExpression) and isinstance(updated, cst.BaseExpression):
            within = updated
            if isinstance(original, cst.Call) and isinstance(updated, cst.Call):
                within = self._realigned(original, updated, original.func)
            updated = self._replaced(original, within)
            if isinstance(original, cst.Call) and isinstance(updated, cst.Call) and isinstance(within, cst.Call):
                before = _before(within, updated)
                if before is None:
                    updated = self._realigned(original, updated, within.func)
                else:
                    updated = self._moved(original, updated, before)
        if self._replacements and isinstance(original, cst.For) and isinstance(updated, cst.For):
            updated = self._realigned_below(original, updated)
        if self._homeless and isinstance(updated, cst.CSTNode) and hasattr(updated, "leading_lines"):
            rows = [cst.EmptyLine(comment=comment) for comment in self._homeless]
            self._homeless = []
            updated = updated.with_changes(leading_lines=[*updated.leading_lines, *rows])
        return updated

    def _replaced(self, original: cst.BaseExpression, updated: cst.BaseExpression) -> cst.BaseExpression:
        extent = self._places.extent(original)
        for replacement in self._replacements.get(extent, ()) if extent is not None else ():
            if same_kind(replacement.node, original):
                self._done.add(id(replacement))
                edited = replacement.edit(updated)
                if not replacement.moves_comments:
                    self._homeless += _lost_comments(updated, edited)
                updated = edited
        return updated

    def _realigned(self, original: cst.Call, updated: cst.Call, was: cst.BaseExpression) -> cst.Call:
        """Arguments that stood below the first one still do when the function, ``was``, has another length now."""
        return self._moved(original, updated, len(_last_row(updated.func)) - len(_last_row(was)))

    def _realigned_below(self, original: cst.For, updated: cst.For) -> cst.For:
        """So do those of what a loop goes over when its variable has another length now."""
        if not isinstance(original.iter, cst.Call) or not isinstance(updated.iter, cst.Call):
            return updated
        shift = len(_last_row(updated.target)) - len(_last_row(original.target))
        return updated.with_changes(iter=self._moved(original.iter, updated.iter, shift))

    def _moved(self, original: cst.Call, updated: cst.Call, shift: int) -> cst.Call:
        """A call whose arguments below the first one are moved with that, if they all stand right below it."""
        function = self._places.whole(original.func)
        rows = [where for item in original.args if (where := self._places.whole(item)) is not None]
        if not shift or function is None or not rows or rows[0].start.line != function.end.line:
            return updated
        heads = {where.start.line: where.start.column for where in reversed(rows)}
        below = {column for line, column in heads.items() if line > function.end.line}
        was_one_row = rows[-1].end.line == function.end.line  # what is below now was put there, right below the first
        if below != {rows[0].start.column} and not was_one_row:
            return updated
        shifted = [item.visit(Shift(shift)) for item in updated.args]
        return updated.with_changes(args=[item for item in shifted if isinstance(item, cst.Arg)])


def _lost_comments(before: cst.BaseExpression, after: cst.BaseExpression) -> list[cst.Comment]:
    """Comments inside of an expression that are not in what became of it."""
    if "#" not in cst.Module([]).code_for_node(before):
        return []
    kept = [comment.value for comment in _comments(after)]
    lost = []
    for comment in _comments(before):
        if comment.value in kept:
            kept.remove(comment.value)
        else:
            lost.append(comment)
    return lost


def _comments(node: cst.CSTNode) -> list[cst.Comment]:
    found = [node] if isinstance(node, cst.Comment) else []
    for child in node.children:
        found += _comments(child)
    return found


def _before(inner: cst.Call, outer: cst.Call) -> int | None:
    """How many characters of its row stand before a call in one that was put around it; None where it is no such."""
    whole, _, after = cst.Module([]).code_for_node(outer).partition(cst.Module([]).code_for_node(inner))
    return len(whole.rpartition("\n")[2]) if after else None


def _last_row(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node).rpartition("\n")[2]
