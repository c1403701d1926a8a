"""Which names may not be bound yet where a statement reads them.

Definite assignment, as languages have it whose compilers insist on it: a name is bound where every path to the place
binds it. A path on which an earlier statement would have failed for want of the same name counts as none.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from amp_rules.plan.draft_check.naming import (
    Names,
    certain_reads,
    deleted_names,
    loads,
    written_names,
)
from amp_rules.source.index import ends_process
from amp_rules.source.scopes import bindings
from amp_rules.source.syntax import children, spelling, walk

State = frozenset[str] | None
"""The names that are bound on every path; None where no path leads."""

_ALL = "*"
"""Stands in a state for whatever a star import brought."""

_UNDER = "?"
"""Stands in a state between a condition and a name that is bound under it."""

_STEADY = (
    ast.Name,
    ast.Attribute,
    ast.Constant,
    ast.Compare,
    ast.BoolOp,
    ast.UnaryOp,
)
"""What a condition may consist of that holds as long as nothing is assigned to what it names."""

_BUILTINS = frozenset(dir(builtins)) | {"__file__", "__name__", "__doc__", "__package__", "__spec__", "__builtins__"}
_SUPPRESSES = frozenset({"suppress"})


@dataclass
class Reads:
    """What the statements of a tree read.

    Attributes:
        open: the names that may not be bound when a statement begins, or the head of a compound one.
        unreachable: statements that no path leads to.
    """

    open: dict[ast.stmt, set[str]] = field(default_factory=dict)
    unreachable: set[ast.stmt] = field(default_factory=set)


def reads_of(tree: ast.Module, alias: str | None) -> Reads:
    """Go through every body of a tree; ``alias`` is the name that the runtime has in it."""
    found = Reads()
    whole = Names.of(tree)
    everything = _BUILTINS | whole.bound
    _Body(found, whole, everything, alias).suite(tree.body, frozenset(_BUILTINS - whole.bound))
    _functions(tree, everything, found, alias)
    return found


def _functions(body: ast.AST, outer: frozenset[str], found: Reads, alias: str | None) -> None:
    """Go through the functions in a body; ``outer`` are the names of the bodies around them."""
    for node in _nested(body):
        names = Names.of(node)
        given = frozenset(names.parameters)
        _Body(found, names, outer, alias).suite(node.body, given)
        _functions(node, outer | names.bound, found, alias)


def _nested(body: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions directly in a body, also those of its classes."""
    pending: list[ast.AST] = list(getattr(body, "body", []))
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        elif not isinstance(node, ast.Lambda):
            pending += children(node)


class _Body:
    """Goes through the statements of one body, with what is bound at each."""

    def __init__(self, found: Reads, names: Names, outer: frozenset[str], alias: str | None) -> None:
        self._found = found
        self._names = names
        self._outer = outer | _BUILTINS
        self._alias = alias
        self._breaks: list[list[State]] = []
        self._tests: dict[str, set[str]] = {}

    def suite(self, statements: Iterable[ast.stmt], state: State) -> State:
        """What is bound after some statements."""
        for statement in statements:
            if state is None:
                self._found.unreachable |= {node for node in walk(statement) if isinstance(node, ast.stmt)}
            else:
                state = self._statement(statement, state)
        return state

    def _statement(self, node: ast.stmt, state: frozenset[str]) -> State:
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is not None:
            result: State = handler(node, state)
            return result
        state = self._evaluated(node, [node], state)
        if isinstance(node, (ast.Return, ast.Raise, ast.Continue)):
            return None
        if isinstance(node, ast.Expr) and ends_process(node.value):
            return None
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) and not node.test.value:
            return None
        return state

    def _evaluated(self, statement: ast.stmt, parts: Iterable[ast.AST | None], state: frozenset[str]) -> frozenset[str]:
        """Note what parts of a statement read, and add what they bind for certain."""
        for part in parts:
            if part is None:
                continue
            for name in loads(part):
                local = name in self._names.bound
                if _ALL not in state and (name not in state if local else name not in self._outer):
                    self._found.open.setdefault(statement, set()).add(name)
            state = (state | set(certain_reads(part))) - deleted_names(part)
            if any(_UNDER in item for item in state):
                written = written_names(part)
                lost = {mark for mark, names in self._tests.items() if names & written}
                state = frozenset(item for item in state if item.partition(_UNDER)[0] + _UNDER not in lost)
        return state

    # ---- statements that lead somewhere else -----------------------------------------------------------------------

    def _import(self, node: ast.Import, state: frozenset[str]) -> State:
        return state | set(bindings(node))

    def _importfrom(self, node: ast.ImportFrom, state: frozenset[str]) -> State:
        return state | {_ALL if name == "*" else name for name in bindings(node)}

    def _break(self, node: ast.Break, state: frozenset[str]) -> State:
        if self._breaks:
            self._breaks[-1].append(state)
        return None

    def _functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, state: frozenset[str]) -> State:
        defaults = [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults]
        return self._evaluated(node, defaults, state) | {node.name}

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef, state: frozenset[str]) -> State:
        state = self._evaluated(node, [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)], state)
        names = Names.of(node)
        around = (self._outer - self._names.bound) | state
        if _ALL not in state:
            _Body(self._found, names, around, self._alias).suite(node.body, around)
        return state | {node.name}

    def _if(self, node: ast.If, state: frozenset[str]) -> State:
        branches: list[tuple[ast.If, str, State]] = []
        # Branches may be a thousand, one under the other: no calls within calls for them.
        while True:
            state = self._evaluated(node, [node.test], state)
            given = self._given(node.test)
            marks = [mark for part in _parts(node.test) if (mark := self._given(part))]
            inside = state | {item.removeprefix(mark) for mark in marks for item in state if item.startswith(mark)}
            branches.append((node, given, self.suite(node.body, inside)))
            if len(node.orelse) != 1 or not isinstance(node.orelse[0], ast.If):
                break
            node = node.orelse[0]
        result = self.suite(node.orelse, state)
        written = {name for item in node.orelse for name in written_names(item)}
        for branch, given, body in reversed(branches):
            written = written.union(*map(written_names, (branch.test, *branch.body)))
            result = self._after_branch(branch, given, body, result, written)
        return result

    def _after_branch(self, node: ast.If, given: str, body: State, orelse: State, written: set[str]) -> State:
        """What is bound after a condition; ``written`` is what its test and its branches write."""
        if isinstance(node.test, ast.Constant):
            return body if node.test.value else orelse
        joined = _joined(body, orelse)
        if given and body is not None and joined is not None and not self._tests[given] & written:
            # What is bound under a condition can be read under the same one.
            joined |= {given + name for name in body if _UNDER not in name}
        return joined

    def _given(self, test: ast.expr) -> str:
        """What marks the names that are bound under a condition; empty where it may not hold a second time."""
        if not all(isinstance(node, _STEADY) or self._asks_for_main(node) for node in walk(test)):
            return ""
        mark = ast.unparse(test) + _UNDER
        self._tests[mark] = {node.id for node in walk(test) if isinstance(node, ast.Name)}
        return mark

    def _asks_for_main(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and spelling(node.func) == f"{self._alias}.is_main_process"

    def _for(self, node: ast.For | ast.AsyncFor, state: frozenset[str]) -> State:
        state = self._evaluated(node, [node.iter], state)
        inside = self._evaluated(node, [node.target], state) - deleted_names(node)
        self._breaks.append([])
        self.suite(node.body, inside)
        left = self._breaks.pop()
        after = self.suite(node.orelse, state - deleted_names(node))
        return _joined(after, *left)

    _asyncfor = _for

    def _while(self, node: ast.While, state: frozenset[str]) -> State:
        state = self._evaluated(node, [node.test], state)
        self._breaks.append([])
        self.suite(node.body, state - deleted_names(node))
        left = self._breaks.pop()
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        after = None if endless else self.suite(node.orelse, state - deleted_names(node))
        return _joined(after, *left)

    def _with(self, node: ast.With | ast.AsyncWith, state: frozenset[str]) -> State:
        for item in node.items:
            state = self._evaluated(node, [item.context_expr, item.optional_vars], state)
        after = self.suite(node.body, state)
        heads = {
            (spelling(item.context_expr.func) or "").rpartition(".")[2]
            for item in node.items
            if isinstance(item.context_expr, ast.Call)
        }
        return _joined(after, state - deleted_names(node)) if heads & _SUPPRESSES else after

    _asyncwith = _with

    def _try(self, node: ast.Try, state: frozenset[str]) -> State:
        after = self.suite(node.body, state)
        after = self.suite(node.orelse, after) if node.orelse else after
        early = state - deleted_names(node)
        ends = [after]
        for handler in node.handlers:
            entered = self._evaluated(node, [handler.type], early)
            name = {handler.name} if handler.name else set()
            end = self.suite(handler.body, entered | name)
            ends.append(end - name if end is not None else None)
        if not node.finalbody:
            return _joined(*ends)
        last = self.suite(node.finalbody, early)
        result = _joined(*ends)
        return None if result is None or last is None else result | last

    _trystar = _try

    def _match(self, node: ast.Match, state: frozenset[str]) -> State:
        state = self._evaluated(node, [node.subject], state)
        ends: list[State] = []
        for case in node.cases:
            caught = {name for item in walk(case.pattern) for name in bindings(item)}
            inside = self._evaluated(node, [case.guard], state | caught)
            ends.append(self.suite(case.body, inside))
        takes_all = any(
            isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and case.guard is None
            for case in node.cases
        )
        return _joined(*ends) if takes_all else _joined(state, *ends)


def _parts(test: ast.expr) -> list[ast.expr]:
    """What holds where a test does: it, and of ``a and b and c`` each run of conditions too."""
    if not isinstance(test, ast.BoolOp) or not isinstance(test.op, ast.And):
        return [test]
    values, count = test.values, len(test.values)
    runs = [values[first:last] for first in range(count) for last in range(first + 1, count + 1)]
    return [run[0] if len(run) == 1 else ast.BoolOp(ast.And(), run) for run in runs]


def _joined(*states: State) -> State:
    """What is bound on every path that leads on."""
    ways = [state for state in states if state is not None]
    if not ways:
        return None
    # A star import on one of the ways may have brought what the others bind.
    return frozenset.intersection(*ways) | ({_ALL} if any(_ALL in way for way in ways) else set())
