"""Places that are come to only where a process group exists: ``if dist.is_initialized():``, ``if world < 2: return``.

What tests come out as without a group is worked out through the small functions that scripts ask with, as torchvision's
``is_dist_avail_and_initialized`` and ``get_world_size``.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Sequence

from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import FileIndex
from amp_rules.source.modules import Module
from amp_rules.source.resolver import is_variable
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import walk

_MAX_DEPTH = 6
"""Names, functions and callers between a test and what asks for the group; helpers have two or three."""

_ASKS = frozenset({"torch.distributed.is_initialized", "torch.distributed.distributed_c10d.is_initialized"})
_UNKNOWN = object()
_COMPARES: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


class GroupGuards:
    """Answers for the places of a program that creates no group.

    Args:
        program: the program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._indexes: dict[Module, FileIndex] = {}

    def stand_before(self, module: Module, node: ast.AST) -> bool:
        """Whether no run without a process group comes to a place, by tests in its function or on all ways there."""
        return self._stand_before(module, node, 0)

    def tests(self, module: Module, node: ast.AST) -> Iterator[ast.expr]:
        """Yield the tests that decide on the ways to a place, in its function and in callers."""
        for where, place in self.ways(module, node):
            yield from (test for test, _ in self._index(where).branches(place))

    def ways(
        self, module: Module, node: ast.AST, seen: frozenset[ast.AST] = frozenset()
    ) -> Iterator[tuple[Module, ast.AST]]:
        """Yield a place, and the calls by which a run comes to it."""
        located = self._program.locate(node)
        if located is None or located[0] in seen or len(seen) > _MAX_DEPTH:
            return
        yield module, node
        info = self._program.function_of(located[0])
        for item in self._program.flow.callers(info) if info is not None else ():
            yield from self.ways(item.scope.module, item.call, seen | {located[0]})

    def _index(self, module: Module) -> FileIndex:
        if module not in self._indexes:
            self._indexes[module] = FileIndex(module, {})
        return self._indexes[module]

    def _stand_before(self, module: Module, node: ast.AST, depth: int) -> bool:
        located = self._program.locate(node)
        if located is None or depth > _MAX_DEPTH:
            return False
        body, scope = located
        for test, holds in self._index(module).branches(node):
            value = self._value(test, scope, 0)
            if value is not _UNKNOWN and bool(value) is not holds:
                return True
        info = self._program.function_of(body)
        callers = self._program.flow.callers(info) if info is not None else []
        return bool(callers) and all(self._stand_before(item.scope.module, item.call, depth + 1) for item in callers)

    # ---- what an expression is without a group ---------------------------------------------------------------------

    def _value(self, node: ast.expr, scope: Scope, depth: int) -> object:
        if depth > _MAX_DEPTH:
            return _UNKNOWN
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self._value(node.operand, scope, depth)
            return value if value is _UNKNOWN else not value
        if isinstance(node, ast.BoolOp):
            values = [self._value(item, scope, depth) for item in node.values]
            decides = isinstance(node.op, ast.Or)
            if any(value is not _UNKNOWN and bool(value) is decides for value in values):
                return decides
            return _UNKNOWN if _UNKNOWN in values else not decides
        if isinstance(node, ast.IfExp):
            test = self._value(node.test, scope, depth)
            return _UNKNOWN if test is _UNKNOWN else self._value(node.body if test else node.orelse, scope, depth)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARES:
            left, right = (self._value(item, scope, depth) for item in (node.left, node.comparators[0]))
            is_number = isinstance(left, int) and isinstance(right, int)
            return _COMPARES[type(node.ops[0])](left, right) if is_number else _UNKNOWN  # type: ignore[arg-type]
        if isinstance(node, ast.Call):
            return self._called(node, scope, depth)
        return self._named(node, scope, depth) if isinstance(node, ast.Name) else _UNKNOWN

    def _called(self, node: ast.Call, scope: Scope, depth: int) -> object:
        if self._program.callee_names(node, scope) & _ASKS:
            return False
        callees = self._program.flow.callees(node)
        if not callees or node.args or node.keywords:
            return _UNKNOWN
        found = {value for info in callees for value in self._returned(info, depth + 1)}
        return found.pop() if len(found) == 1 else _UNKNOWN

    def _named(self, node: ast.Name, scope: Scope, depth: int) -> object:
        owner = scope.owner(node.id)
        is_given = isinstance(owner.node, FunctionNode) and node.id in {item.arg for item in arguments_of(owner.node)}
        if is_given or not is_variable(node, scope):
            return _UNKNOWN
        bound = sum(
            isinstance(item, ast.Name) and item.id == node.id and not isinstance(item.ctx, ast.Load)
            for item in blocks.walk_body(owner.node)
        )
        values = assigned(self._program, node, scope)
        return self._value(values[0], owner, depth + 1) if len(values) == bound == 1 else _UNKNOWN

    def _returned(self, info: FunctionFacts, depth: int) -> set[object]:
        """What a function may return."""
        if isinstance(info.node, ast.Lambda):
            return {self._value(info.node.body, self._program.flow.scopes[info.node], depth)}
        if not isinstance(info.node, ast.FunctionDef) or info.decorator_list:
            return {_UNKNOWN}
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
                chosen = [item.body, item.orelse] if test is _UNKNOWN else [item.body if test else item.orelse]
                if all([self._run(part, scope, depth, found) for part in chosen]):
                    return True
            elif isinstance(item, ast.Raise):
                return True
            elif any(isinstance(part, ast.Return) for part in walk(item)):
                found.add(_UNKNOWN)
        return False
