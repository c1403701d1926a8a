"""Places that a run gets to only where it has not joined any processes: by tests that exclude each other."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from amp_rules.plan.own_ddp.rank_tests import certain_parts
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.workers import workers
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import literal
from amp_rules.source.modules import Module

_MAX_CALLERS = 6
"""Functions around a call that joins; a longer chain counts as one without further tests."""

Branches = Callable[[Module, ast.AST], Iterator[tuple[ast.expr, bool]]]
_Tests = frozenset[tuple[str, str, object, bool]]


class WithoutGroup:
    """Answers for the places of a program.

    Args:
        program: the program.
        joins: the calls that join processes.
        branches: the tests around a place, within its function.
    """

    def __init__(self, program: Program, joins: Iterable[Site], branches: Branches) -> None:
        self._program = program
        self._branches = branches
        self._starts: dict[ast.AST, list[Site]] = {}
        self._known: dict[ast.AST, bool] = {}
        for site, info in workers(program):
            self._starts.setdefault(info.node, []).append(site)
        # ``if several: spawn(worker) else: worker(0)``, where the worker joins ``if several``: no run goes there so.
        found = (way for site in joins for way in self._ways_to(site, frozenset()))
        self._ways = [way for way in found if not _exclude(way, way)]

    def holds_at(self, module: Module, node: ast.AST) -> bool:
        """Whether every call that joins stands behind a test that comes out otherwise where the place is reached."""
        if node not in self._known:
            tests: _Tests = self._tests(module, node) if self._ways else frozenset()
            self._known[node] = bool(tests) and all(_exclude(tests, way) for way in self._ways)
        return self._known[node]

    def _tests(self, module: Module, node: ast.AST) -> _Tests:
        parts = (part for test, holds in self._branches(module, node) for part in certain_parts(test, holds))
        found = (_told(test, holds) for test, holds in parts)
        return frozenset(item for item in found if item is not None)

    def _ways_to(self, site: Site, seen: frozenset[ast.AST]) -> Iterator[_Tests]:
        """Yield the tests on each way to a call, from the file's own suite on."""
        tests = self._tests(site.module, site.node)
        info = self._program.function_of(site.body)
        callers = self._callers(info) if info is not None and len(seen) < _MAX_CALLERS else []
        callers = [item for item in callers if site.body not in seen]
        if not callers:
            yield tests
        for item in callers:
            for way in self._ways_to(item, seen | {site.body}):
                yield tests | way

    def _callers(self, info: FunctionFacts) -> list[Site]:
        """What runs a function: its calls, and what starts processes with it."""
        return [*map(calling, self._program.flow.callers(info)), *self._starts.get(info.node, ())]


def _told(test: ast.expr, holds: bool) -> tuple[str, str, object, bool] | None:
    """A test of one variable by its name: ``mode == "off"``, ``args.distributed``."""
    if isinstance(test, (ast.Name, ast.Attribute)) and (path := blocks.path_of(test)) is not None:
        return path, "is true", None, holds
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
        path = blocks.path_of(test.left) if isinstance(test.left, (ast.Name, ast.Attribute)) else None
        value = _number(test.comparators[0])
        if path is not None and isinstance(value, (str, int)):
            return path, "equals", value, holds is isinstance(test.ops[0], ast.Eq)
    return None


def _number(node: ast.expr) -> object:
    """A constant, with its sign: ``-1`` stands for one process."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = literal(node.operand)
        return -value if isinstance(value, int) else ...
    return literal(node)


def _exclude(tests: _Tests, others: _Tests) -> bool:
    """Whether not all of some tests can come out like this."""
    for path, kind, value, holds in tests:
        for path_of_other, other_kind, other, other_holds in others:
            if (path, kind) != (path_of_other, other_kind):
                continue
            if value == other and holds is not other_holds:
                return True
            if kind == "equals" and value != other and holds and other_holds:
                return True
    return False
