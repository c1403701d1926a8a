"""Which numbers of Python an expression may be: through variables, defaults, arguments and attributes of objects."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable
from functools import cached_property

from amp_rules.plan.definitions import Definitions
from amp_rules.roles.program import Program
from amp_rules.source.scopes import Scope
from amp_rules.torch.dtypes import FLOAT32_TYPES
from amp_rules.torch.functions import INFINITIES
from amp_rules.torch.half_precision import LARGEST_FLOAT32

_MAX_DEPTH = 8
"""Variables and arguments that are looked through: a setting is handed on by a constructor or two."""
_MOST = 16
"""Numbers that are kept apart: what takes more is computed, and not written by a person."""
_LARGEST_BASE, _LARGEST_POWER = 100, 128
"""Powers of more are not computed: they may be no floats."""
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


class Numbers:
    """Answers about one program."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def of(self, node: ast.expr, scope: Scope) -> frozenset[float]:
        """All numbers that an expression may be; none where one of them, or whether it is a number, is not known."""
        return self._of(node, scope, 0) or frozenset()

    @cached_property
    def _definitions(self) -> Definitions:
        return Definitions(self._program)

    def _of(self, node: ast.expr, scope: Scope, depth: int) -> frozenset[float] | None:
        if depth > _MAX_DEPTH:
            return None
        match node:
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int() | float() as number):
                return frozenset({number})
            case ast.UnaryOp(op=ast.USub()):
                operands = self._of(node.operand, scope, depth + 1)
                return None if operands is None else frozenset(-item for item in operands)
            case ast.BinOp():
                return self._computed(node, scope, depth)
            case ast.IfExp():
                return _joined(self._of(item, scope, depth + 1) for item in (node.body, node.orelse))
            case ast.Call():
                return self._converted(node, scope, depth)
            case ast.Name() | ast.Attribute():
                if self._program.names(node, scope) & INFINITIES:
                    return frozenset({math.inf})
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
                    return self._limit(node, node.value, scope)
                return self._held(node, scope, depth)
        return None

    def _computed(self, node: ast.BinOp, scope: Scope, depth: int) -> frozenset[float] | None:
        left, right = self._of(node.left, scope, depth + 1), self._of(node.right, scope, depth + 1)
        if left is None or right is None:
            return None
        found = [_result(node.op, one, other) for one in left for other in right]
        return _joined(None if item is None else frozenset({item}) for item in found)

    def _converted(self, node: ast.Call, scope: Scope, depth: int) -> frozenset[float] | None:
        """``float("-inf")``, ``float(-1e9)``."""
        if "builtins.float" not in self._program.callee_names(node, scope) or len(node.args) != 1 or node.keywords:
            return None
        given = node.args[0]
        if not (isinstance(given, ast.Constant) and isinstance(given.value, str)):
            return self._of(given, scope, depth + 1)
        try:
            number = float(given.value)
        except ValueError:
            return None
        return None if math.isnan(number) else frozenset({number})

    def _limit(self, node: ast.Attribute, call: ast.Call, scope: Scope) -> frozenset[float] | None:
        """``torch.finfo(torch.float32).min``."""
        is_limit = self._program.callee_names(call, scope) == {"torch.finfo"} and node.attr in ("min", "max")
        if not (is_limit and len(call.args) == 1 and self._program.names(call.args[0], scope) & FLOAT32_TYPES):
            return None
        return frozenset({-LARGEST_FLOAT32 if node.attr == "min" else LARGEST_FLOAT32})

    def _held(self, node: ast.Name | ast.Attribute, scope: Scope, depth: int) -> frozenset[float] | None:
        """What a variable, an attribute or a parameter holds."""
        given = self._definitions.of(node, scope)
        if not all(item.whole for item in given):
            return None
        found = [self._of(item.value, item.scope, depth + 1) for item in given]
        function = self._definitions.parameter(node, scope)
        info = self._program.function_of(function) if function is not None else None
        if function is not None:
            if info is None or not isinstance(node, ast.Name):
                return None
            for caller in self._program.flow.callers(info):
                value = info.argument_or_default(caller.call, node.id)
                where = self._program.flow.scope_given(info, caller, value)
                found.append(None if value is None else self._of(value, where, depth + 1))
        return _joined(found)


def _result(operation: ast.operator, left: float, right: float) -> float | None:
    if isinstance(operation, ast.Pow):
        may = 0 < left <= _LARGEST_BASE and 0 <= right <= _LARGEST_POWER
        return float(left**right) if may else None
    compute = _OPERATORS.get(type(operation))
    return None if compute is None else compute(left, right)


def _joined(found: Iterable[frozenset[float] | None]) -> frozenset[float] | None:
    """What one of several expressions may be; None where nothing is known of one, or there is none."""
    numbers: set[float] = set()
    for item in found:
        if item is None:
            return None
        numbers |= item
    return frozenset(numbers) if 0 < len(numbers) <= _MOST else None
