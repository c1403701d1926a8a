"""Which statements of a draft were there before, and which are new.

A draft is the text that edits made of a file. What was there must still be there, in its order and under its own
conditions, save for what an edit takes out by name; everything else must be what an edit put there. Nothing of how
edits are carried out is taken on trust: two trees are compared.
"""

from __future__ import annotations

import ast
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Action, Decorate, EditNames, Insert, Join, Remove, Replace, Unwrap, Wrap
from amp_rules.text.conditions import joined

_SUITES = ("body", "orelse", "finalbody", "handlers", "cases")
_END = object()
"""Ends a node or a list in a dump."""


@dataclass(frozen=True)
class Defect:
    """Something that a draft must not do.

    Attributes:
        module: the file, as it was.
        place: the statement of it beside which the defect is; None for the whole file.
        what: what is wrong, as the end of "the draft ...".
    """

    module: Module
    place: ast.stmt | None
    what: str


class Mismatch(Exception):
    """The draft is not the original with the edits in it."""

    def __init__(self, defect: Defect) -> None:
        super().__init__(defect.what)
        self.defect = defect


@dataclass
class Draft:
    """The new text of one file, statement by statement.

    Attributes:
        module: the file, as it was.
        tree: its new tree.
        old: for each statement that was there, what it was.
        added: the new statements; those within a new block too.
        wrappers: new blocks around statements that were there.
    """

    module: Module
    tree: ast.Module
    old: dict[ast.stmt, ast.stmt] = field(default_factory=dict)
    added: set[ast.stmt] = field(default_factory=set)
    wrappers: set[ast.stmt] = field(default_factory=set)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    def place_of(self, statement: ast.stmt) -> ast.stmt | None:
        """The statement of the original that is nearest to one of the draft."""
        if statement in self.old:
            return self.old[statement]
        for node in walk(statement):
            if isinstance(node, ast.stmt) and node in self.old:
                return self.old[node]
        suite, index = self.suite_of(statement)
        for beside in (*suite[index + 1 :], *reversed(suite[:index])):
            if beside in self.old:
                return self.old[beside]
        parent = self.parents[statement]
        return self.place_of(parent) if isinstance(parent, ast.stmt) else None

    def suite_of(self, statement: ast.stmt) -> tuple[list[ast.stmt], int]:
        """The suite of the draft that holds a statement, and its index there."""
        for suite in blocks.suites(self.parents[statement]):
            for index, item in enumerate(suite):
                if item is statement:
                    return suite, index
        raise ValueError("a statement outside of its parent's suites")


def matched(module: Module, actions: Sequence[Action], after: str) -> Draft:
    """Match a draft with the file that it was made of.

    Raises:
        Mismatch: it does not parse, something of the file is lost or in another order, or something is new that no edit
            put there.
    """
    try:
        tree = ast.parse(after)
    except SyntaxError as error:
        raise Mismatch(Defect(module, None, f"does not parse ({error.msg}, its line {error.lineno})")) from error
    draft = Draft(module, tree)
    draft.parents = {child: node for node in ast.walk(draft.tree) for child in ast.iter_child_nodes(node)}
    _Matcher(draft, actions).match()
    return draft


class _Matcher:
    """Goes through both trees side by side."""

    def __init__(self, draft: Draft, actions: Sequence[Action]) -> None:
        self._draft = draft
        # Suites that wait: branches by the thousand, one under the other, would be calls within calls.
        self._waiting: deque[tuple[list[ast.stmt], Sequence[ast.stmt]]] = deque()
        actions = joined(draft.module, actions)
        self._removed = {item.statement for item in actions if isinstance(item, Remove)}
        self._unwrapped = {item.statement: item.suites for item in actions if isinstance(item, Unwrap)}
        self._edited: set[ast.stmt] = set()
        for item in actions:
            if isinstance(item, Replace):
                self._edited.add(blocks.statement_of(draft.module, item.node))
            elif isinstance(item, Decorate):
                self._edited.add(item.definition)
            elif isinstance(item, (EditNames, Join)):
                self._edited.add(item.statement)
        inserts = [item for item in actions if isinstance(item, Insert)]
        parts = [(part, item.statement) for item in inserts for part in ast.parse(item.lines).body]
        self._codes = Counter(_dump(part) for part, _ in parts)
        self._code_heads = {_head(part) for part, _ in parts}
        self._asked = {_dump(part): (_first_line(part), beside) for part, beside in parts}
        self._extents = [(item.first, item.last) for item in actions if isinstance(item, Wrap)]
        headers = {item.header for item in actions if isinstance(item, Wrap)}
        self._headers = {_head(ast.parse(f"{header}\n    pass").body[0]) for header in headers}

    def match(self) -> None:
        self._waiting.append((list(self._kept(self._draft.module.tree.body)), self._draft.tree.body))
        while self._waiting:
            self._suite(*self._waiting.popleft())
        for dump, (text, beside) in self._asked.items():
            if self._codes[dump] > 0:
                raise Mismatch(Defect(self._draft.module, beside, f"lacks `{text}`"))
        if len(self._draft.wrappers) < len(self._extents):
            raise Mismatch(Defect(self._draft.module, self._extents[0][0], "lacks a new block around this statement"))

    def _suite(self, old: list[ast.stmt], new: Sequence[ast.stmt]) -> None:
        rest = deque(old)
        self._row(rest, new)
        if rest:
            raise Mismatch(Defect(self._draft.module, rest[0], "loses this statement, or has it elsewhere"))

    def _row(self, rest: deque[ast.stmt], new: Sequence[ast.stmt]) -> None:
        """Match the statements of a suite of the draft with the next ones of the original."""
        for item in new:
            head = _head(item)
            if (
                rest
                and rest[0] not in self._edited
                and _head(rest[0]) == head
                and not self._is_new(item, head, rest[0])
            ):
                self._found(rest.popleft(), item)
            elif self._codes[_dump(item)] > 0:
                self._codes[_dump(item)] -= 1
                self._draft.added |= {node for node in walk(item) if isinstance(node, ast.stmt)}
            elif _head(item) in self._headers:
                self._draft.wrappers.add(item)
                before = list(rest)
                self._row(rest, item.body)  # type: ignore[attr-defined]
                self._check_extent(before[: len(before) - len(rest)], item)
            elif rest and rest[0] in self._edited and type(rest[0]) is type(item):
                self._found(rest.popleft(), item)
            elif not (isinstance(item, ast.Pass) and len(new) == 1 and not rest):
                place = rest[0] if rest else None
                raise Mismatch(Defect(self._draft.module, place, f"has `{_first_line(item)}` where it should not"))

    def _is_new(self, item: ast.stmt, head: str, old: ast.stmt) -> bool:
        """Whether a statement is one that was written above one of the script's own that begins like it.

        ``if model is not None:`` may be both.
        """
        return head in self._code_heads and self._codes[_dump(item)] > 0 and _dump(item) != _dump(old)

    def _check_extent(self, inside: list[ast.stmt], wrapper: ast.stmt) -> None:
        """A new block holds what it was to hold, from the first statement to the last."""
        gone = self._removed | self._unwrapped.keys()
        if not any(
            (first in gone or (inside and inside[0] is first)) and (last in gone or (inside and inside[-1] is last))
            for first, last in self._extents
        ):
            place = inside[0] if inside else None
            raise Mismatch(Defect(self._draft.module, place, f"has other lines below `{_first_line(wrapper)}`"))

    def _found(self, old: ast.stmt, new: ast.stmt) -> None:
        self._draft.old[new] = old
        for name in _SUITES:
            before, after = getattr(old, name, None), getattr(new, name, None)
            if not isinstance(before, list) or not isinstance(after, list):
                continue
            if name in ("handlers", "cases"):
                if len(before) != len(after):
                    raise Mismatch(Defect(self._draft.module, old, "loses a branch of this statement"))
                for one, other in zip(before, after, strict=True):
                    self._waiting.append((list(self._kept(one.body)), other.body))
            else:
                self._waiting.append((list(self._kept(before, old if name == "orelse" else None)), after))

    def _kept(self, suite: Sequence[ast.stmt], of: ast.stmt | None = None) -> Iterator[ast.stmt]:
        """What the edits leave of a suite; ``of`` is the ``if`` whose ``elif`` the suite may be."""
        for item in suite:
            if item in self._removed:
                if isinstance(item, ast.If) and isinstance(of, ast.If) and item.col_offset == of.col_offset:
                    yield from self._kept(item.orelse, of)
            elif item in self._unwrapped:
                for name in self._unwrapped[item]:
                    part = item.handlers[0].body if name == "handler" else getattr(item, name)  # type: ignore[attr-defined]
                    yield from self._kept(part)
            else:
                yield item


def _first_line(statement: ast.stmt) -> str:
    return ast.unparse(statement).split("\n")[0]


def _head(node: ast.stmt) -> str:
    """A statement without the suites in it, as a text to compare."""
    if not any(getattr(node, name, None) for name in _SUITES) or isinstance(node, ast.Expr):
        return _dump(node)
    parts = []
    for name, value in ast.iter_fields(node):
        if name in ("body", "orelse", "finalbody"):
            continue
        values = value if isinstance(value, list) else [value]
        for item in values:
            if isinstance(item, ast.ExceptHandler):
                parts.append(f"{name}={item.name}:{_dump(item.type) if item.type else ''}")
            elif isinstance(item, ast.match_case):
                parts.append(f"{_dump(item.pattern)}:{_dump(item.guard) if item.guard else ''}")
            else:
                parts.append(f"{name}={_dump(item) if isinstance(item, ast.AST) else item!r}")
    return f"{type(node).__name__}({', '.join(parts)})"


def _dump(node: ast.AST) -> str:
    """What `ast.dump` says, without its calls within calls: expressions may be long chains."""
    parts: list[str] = []
    waiting: list[object] = [node]
    while waiting:
        item = waiting.pop()
        if isinstance(item, ast.AST):
            parts.append(f"{type(item).__name__}(")
            waiting += (_END, *reversed([value for _, value in ast.iter_fields(item)]))
        elif isinstance(item, list):
            parts.append("[")
            waiting += (_END, *reversed(item))
        else:
            parts.append("]" if item is _END else repr(item))
    return " ".join(parts)
