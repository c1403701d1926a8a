"""Places that are come to only where a process group exists: ``if dist.is_initialized():``, ``if world < 2: return``.

What tests come out as without a group is worked out through the small functions that scripts ask with, as torchvision's
``is_dist_avail_and_initialized`` and ``get_world_size``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from amp_rules.plan.decided_tests import MAX_DEPTH, UNKNOWN, DecidedTests
from amp_rules.roles.path_objects import assigned
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.resolver import is_variable
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import walk

_ASKS = frozenset({"torch.distributed.is_initialized", "torch.distributed.distributed_c10d.is_initialized"})


class GroupGuards(DecidedTests):
    """Answers for the places of a program that creates no group, by what tests are without one."""

    def tests(self, module: Module, node: ast.AST) -> Iterator[ast.expr]:
        """Yield the tests that decide on the ways to a place, in its function and in callers."""
        for where, place in self.ways(module, node):
            yield from (test for test, _ in self._index(where).branches(place))

    def ways(
        self, module: Module, node: ast.AST, seen: frozenset[ast.AST] = frozenset()
    ) -> Iterator[tuple[Module, ast.AST]]:
        """Yield a place, and the calls by which a run comes to it."""
        located = self._program.locate(node)
        if located is None or located[0] in seen or len(seen) > MAX_DEPTH:
            return
        yield module, node
        info = self._program.function_of(located[0])
        for item in self._program.flow.callers(info) if info is not None else ():
            yield from self.ways(item.scope.module, item.call, seen | {located[0]})

    def _calls(self, info: FunctionFacts) -> list[tuple[ast.Call, Scope]]:
        return [(item.call, item.scope) for item in self._program.flow.callers(info)]

    # ---- what an expression is without a group ---------------------------------------------------------------------

    def _value_of_other(self, node: ast.expr, scope: Scope, depth: int) -> object:
        if isinstance(node, ast.IfExp):
            test = self._value(node.test, scope, depth)
            return UNKNOWN if test is UNKNOWN else self._value(node.body if test else node.orelse, scope, depth)
        if isinstance(node, ast.Call):
            return self._called(node, scope, depth)
        return self._named(node, scope, depth) if isinstance(node, ast.Name) else UNKNOWN

    def _called(self, node: ast.Call, scope: Scope, depth: int) -> object:
        if self._program.callee_names(node, scope) & _ASKS:
            return False
        callees = self._program.flow.callees(node)
        if not callees or node.args or node.keywords:
            return UNKNOWN
        found = {value for info in callees for value in self._returned(info, depth + 1)}
        return found.pop() if len(found) == 1 else UNKNOWN

    def _named(self, node: ast.Name, scope: Scope, depth: int) -> object:
        owner = scope.owner(node.id)
        is_given = isinstance(owner.node, FunctionNode) and node.id in {item.arg for item in arguments_of(owner.node)}
        if is_given or not is_variable(node, scope):
            return UNKNOWN
        bound = sum(
            isinstance(item, ast.Name) and item.id == node.id and not isinstance(item.ctx, ast.Load)
            for item in blocks.walk_body(owner.node)
        )
        values = assigned(self._program, node, scope)
        return self._value(values[0], owner, depth + 1) if len(values) == bound == 1 else UNKNOWN

    def _returned(self, info: FunctionFacts, depth: int) -> set[object]:
        """What a function may return."""
        if isinstance(info.node, ast.Lambda):
            return {self._value(info.node.body, self._program.flow.scopes[info.node], depth)}
        if not isinstance(info.node, ast.FunctionDef) or info.decorator_list:
            return {UNKNOWN}
        found: set[object] = set()
        if not self._run(info.node.body, self._program.flow.scopes[info.node], depth, found):
            found.add(None)
        return found

    def _run(self, suite: Sequence[ast.stmt], scope: Scope, depth: int, found: set[object]) -> bool:
        """Add what some statements return; whether they always do."""
        for item in suite:
            if isinstance(item, ast.Return):
                found.add(self._value(item.value, scope, depth) if item.value is not None else None)
                return True
            if isinstance(item, ast.If):
                test = self._value(item.test, scope, depth)
                chosen = [item.body, item.orelse] if test is UNKNOWN else [item.body if test else item.orelse]
                if all([self._run(part, scope, depth, found) for part in chosen]):
                    return True
            elif isinstance(item, ast.Raise):
                return True
            elif any(isinstance(part, ast.Return) for part in walk(item)):
                found.add(UNKNOWN)
        return False
