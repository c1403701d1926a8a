"""Groups of processes that are made a second time on one way through the script."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.torch.distributed import LEAVES

_MAX_CALLS = 4
"""Functions within functions that join: ``main``, ``setup``, ``init_distributed_mode``."""

_Tests = frozenset[tuple[str, bool]]


def joined_twice(own: OwnDdp) -> Iterator[tuple[Site, Site]]:
    """Yield each call that makes a group which is there already, for certain, and the call that made it."""
    ways = _Ways(own)
    for site in own.joins:
        if site.module in own.modules:
            first = ways.before(site.module, site.node, frozenset())
            if first is not None:
                yield site, first


class _Ways:
    """What has been joined for certain on the way to a place."""

    def __init__(self, own: OwnDdp) -> None:
        self._own = own
        self._joins = {site.node: site for site in own.joins}
        self._joining = own.program.closure(lambda node: node in self._joins)
        self._leaving = self._leaves()

    def _leaves(self) -> Callable[[ast.AST], bool]:
        calls = {site.node for site in self._own.program.calls_to(LEAVES)}
        return self._own.program.closure(lambda node: node in calls)

    def before(self, module: Module, node: ast.AST, seen: frozenset[ast.AST]) -> Site | None:
        """The call that has made a group on every way to a place; None where none has, or a test asks for it."""
        tests = frozenset((ast.unparse(test), holds) for test, holds in self._own.branches(module, node))
        if any("initialized" in text for text, _ in tests):
            return None
        body = blocks.body_of(module, node)
        above = sorted(
            blocks.statements_above(module, blocks.statement_of(module, node), body), key=lambda item: item.lineno
        )
        # The entry's guard and ``with`` are listed without what they hold, which the suites around a place have.
        found = self._after(module, above, tests, None, _MAX_CALLS)
        info = self._own.program.function_of(body)
        if found is not None or info is None or body in seen or len(seen) > _MAX_CALLS:
            return found
        callers = self._own.program.flow.callers(info)
        ways = [self.before(item.scope.module, item.call, seen | {body}) for item in callers]
        return ways[0] if ways and None not in ways else None

    def _after(
        self, module: Module, statements: Iterable[ast.stmt], tests: _Tests, found: Site | None, depth: int
    ) -> Site | None:
        """The call that has made a group for certain once some statements have run."""
        for item in statements:
            if self._leaving(item):
                found = None
            elif found is None and self._joining(item):
                found = self._joined(module, item, tests, depth)
            if found is None and depth < _MAX_CALLS and _may_return(item):
                return None  # what stands below need not run
        return found

    def _joined(self, module: Module, item: ast.stmt, tests: _Tests, depth: int) -> Site | None:
        """The call that a statement runs for certain, where the tests around it come out as they do."""
        if isinstance(item, ast.If):
            test = ast.unparse(item.test)
            if (test, True) in tests or "__name__" in test:
                return self._after(module, item.body, tests, None, depth)
            if (test, False) in tests:
                return self._after(module, item.orelse, tests, None, depth)
            ways = [self._after(module, suite, tests, None, depth) for suite in (item.body, item.orelse)]
            return ways[0] if None not in ways else None
        if isinstance(item, ast.With):
            return self._after(module, item.body, tests, None, depth)
        if isinstance(item, (*blocks.LOOPS, ast.Try, ast.FunctionDef, ast.ClassDef)):
            return None
        for node in blocks.walk_own(item):
            if node in self._joins:
                return self._joins[node]
            callees = self._own.program.flow.callees(node) if isinstance(node, ast.Call) and depth else []
            for info in callees if len(callees) == 1 else ():
                inner = info.module.module
                found = self._after(inner, blocks.own_parts(info.node), frozenset(), None, depth - 1)  # type: ignore[arg-type]
                if found is not None:
                    return found
        return None


def _may_return(item: ast.stmt) -> bool:
    return any(isinstance(node, (ast.Return, ast.Raise)) for node in blocks.walk_own(item))
