"""Which expressions are tensors, and which may be arrays of NumPy: both are multiplied by the same words.

Autocast does nothing to arrays, and torch's functions refuse them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property
from typing import Literal

from amp_rules.plan.definitions import Definitions
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.torch.data import ARRAY_PACKAGES

Kind = Literal["tensor", "array"]

_OF_TENSORS = frozenset(
    {"to", "cuda", "cpu", "float", "double", "detach", "unsqueeze", "permute", "contiguous", "expand", "expand_as"}
)
"""Methods that no array of NumPy has, and that give a tensor."""
_KEEPING = frozenset({"view", "reshape", "flatten", "transpose", "t", "clone", "squeeze", "repeat", "sum", "mean"})
_TO_ARRAYS = frozenset({"numpy", "to_numpy"})
_SHAPED = frozenset({"T", "mT", "data", "real"})
_LOADING = frozenset({"torch.load", "torch.utils.data.default_collate"})
_TELLING_TENSORS = frozenset({"torch.is_tensor"})
_PASSING = frozenset(
    f"builtins.{name}" for name in "zip enumerate list tuple sorted reversed iter next sum max min abs".split()
)
"""Functions whose results are of what they are given."""
_MAX_DEPTH = 12


def is_of_tensors(program: Program, site: Site) -> bool:
    """Whether a product is certainly of tensors, as how it is written and the statements above it tell."""
    node = site.node
    if isinstance(node, ast.Call) and _is_of_torch(program, node, site.scope):
        return True
    return any(_is_tensor(program, item, site.scope) for item in _operands(node))


class Arrays:
    """Answers about one program.

    Args:
        program: the program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program

    def may_be_of(self, site: Site) -> bool:
        """Whether an operation, or a method, may be of arrays: something that it is of is made by NumPy."""
        node = site.node
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute):
            return False
        if isinstance(node, ast.Call) and self._program.callee_names(node, site.scope):
            return False
        if is_of_tensors(self._program, site):
            return False
        told = _told_by_tests(self._program, site)
        return told == "array" if told is not None else self._are_arrays(site)

    def _are_arrays(self, site: Site) -> bool:
        """Whether something that an operation is of is made by NumPy."""
        node = site.node
        return _operated([self._kind(item, site.scope, frozenset()) for item in _operands(node)]) == "array"

    @cached_property
    def _definitions(self) -> Definitions:
        return Definitions(self._program)

    def _kind(self, node: ast.expr, scope: Scope, asked: frozenset[ast.AST]) -> Kind | None:
        """What an expression may be; None where nothing tells."""
        if node in asked or len(asked) > _MAX_DEPTH:
            return None
        asked |= {node}
        match node:
            case ast.Call():
                return self._called(node, scope, asked)
            case ast.Name() | ast.Attribute():
                return self._held(node, scope, asked)
            case ast.Subscript() | ast.Starred() | ast.NamedExpr():
                return self._kind(node.value, scope, asked)
            case ast.UnaryOp():
                return self._kind(node.operand, scope, asked)
            case ast.BinOp():
                sides = [self._kind(item, scope, asked) for item in (node.left, node.right)]
                # A tensor is scaled by `np.sqrt(2)` too.
                told = isinstance(node.op, ast.MatMult) or None not in sides or _has_constant(node)
                return _operated(sides) if told or "tensor" in sides else None
            case ast.Compare():
                return _operated([self._kind(item, scope, asked) for item in (node.left, *node.comparators)])
            case ast.IfExp():
                return _any(self._kind(item, scope, asked) for item in (node.body, node.orelse))
            case ast.Tuple() | ast.List():
                return _any(self._kind(item, scope, asked) for item in node.elts)
        return None

    def _called(self, call: ast.Call, scope: Scope, asked: frozenset[ast.AST]) -> Kind | None:
        callees = self._program.flow.callees(call)
        if callees:
            scopes = self._program.flow.scopes
            return _any(self._kind(item, scopes[info.node], asked) for info in callees for item in info.returns)
        names = self._program.callee_names(call, scope)
        if any(name.partition(".")[0] in ARRAY_PACKAGES for name in names):
            return "array"
        if names and names <= _PASSING:
            return _any(self._kind(item, scope, asked) for item in call.args)
        if _is_of_torch(self._program, call, scope):
            return "tensor"
        if names or not isinstance(call.func, ast.Attribute):
            return None
        if call.func.attr in _TO_ARRAYS:
            return "array"
        return "tensor" if call.func.attr in _OF_TENSORS else self._kind(call.func.value, scope, asked)

    def _held(self, node: ast.Name | ast.Attribute, scope: Scope, asked: frozenset[ast.AST]) -> Kind | None:
        above = assigned_above(node, scope) if isinstance(node, ast.Name) else None
        known = self._kind(above, scope, asked) if above is not None else None
        if known is not None:
            return known
        given = [self._kind(item.value, item.scope, asked) for item in self._definitions.of(node, scope)]
        function = self._definitions.parameter(node, scope)
        info = self._program.function_of(function) if function is not None else None
        if info is not None and isinstance(node, ast.Name):
            for caller in self._program.flow.callers(info):
                value = info.argument_or_default(caller.call, node.id)
                where = self._program.flow.scope_given(info, caller, value)
                given += [self._kind(value, where, asked)] if value is not None else []
        if not given and isinstance(node, ast.Attribute) and node.attr in _SHAPED:
            return self._kind(node.value, scope, asked)
        return _any(given)


def _told_by_tests(program: Program, site: Site) -> Kind | None:
    """What the tests around an operation have found one of its operands to be; None where they ask for no types."""
    names = {path for item in _operands(site.node) if (path := blocks.path_of(_whole(item))) is not None}
    for test, holds in blocks.tests_around(site.module, site.node):
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, holds = test.operand, not holds
        asked = _asked(program, test, site.scope)
        if asked is not None and asked[0] in names:
            return asked[1] if holds else "tensor" if asked[1] == "array" else "array"
    return None


def _asked(program: Program, test: ast.expr, scope: Scope) -> tuple[str, Kind] | None:
    """What a test asks of which variable: ``isinstance(x, np.ndarray)``, ``torch.is_tensor(x)``."""
    if not (isinstance(test, ast.Call) and test.args):
        return None
    path = blocks.path_of(test.args[0])
    if path is None:
        return None
    if program.callee_names(test, scope) & _TELLING_TENSORS:
        return path, "tensor"
    if not (isinstance(test.func, ast.Name) and test.func.id == "isinstance" and len(test.args) == 2):
        return None
    kinds = [
        item for item in getattr(test.args[1], "elts", [test.args[1]]) if isinstance(item, (ast.Name, ast.Attribute))
    ]
    names: set[str] = set().union(*(program.names(item, scope) for item in kinds))
    if names and all(name.partition(".")[0] in ARRAY_PACKAGES for name in names):
        return path, "array"
    return (path, "tensor") if "torch.Tensor" in names else None


def _whole(node: ast.expr) -> ast.expr:
    """``x`` of ``x.T``, ``x[:3]`` and ``x.transpose(0, 1)``."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr in _SHAPED):
            node = node.value
        else:
            return node


def _operands(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Call):
        return [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
    return []


def _has_constant(node: ast.BinOp) -> bool:
    return isinstance(node.left, ast.Constant) or isinstance(node.right, ast.Constant)


def _operated(kinds: Iterable[Kind | None]) -> Kind | None:
    """What an operation gives, by what it is of: that of a tensor and an array is a tensor, if anything."""
    found = set(kinds)
    return "tensor" if "tensor" in found else "array" if "array" in found else None


def _any(kinds: Iterable[Kind | None]) -> Kind | None:
    """What one of several values may be."""
    found = set(kinds)
    return "array" if "array" in found else "tensor" if "tensor" in found else None


def _is_of_torch(program: Program, node: ast.Call, scope: Scope) -> bool:
    names = program.callee_names(node, scope)
    return bool(names) and all(name.startswith("torch.") and name not in _LOADING for name in names)


def _is_tensor(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Whether an expression is a tensor by how it is written, or by the statement above that assigns its variable."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _OF_TENSORS:
            return True
        if isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPING:
            if _is_tensor(program, node.func.value, scope, depth + 1):
                return True
        return _is_of_torch(program, node, scope)
    if isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr in ("T", "mT")):
        return _is_tensor(program, node.value, scope, depth + 1)
    if isinstance(node, ast.BinOp):
        return any(_is_tensor(program, side, scope, depth + 1) for side in (node.left, node.right))
    value = assigned_above(node, scope) if isinstance(node, ast.Name) else None
    return value is not None and _is_tensor(program, value, scope, depth + 1)


def assigned_above(node: ast.Name, scope: Scope) -> ast.expr | None:
    """What a variable holds, where a plain assignment above gives it and no loop in between another value.

    It may stand in a ``with`` above: what is in there has run.
    """
    module = scope.module
    above = blocks.statements_above(module, blocks.statement_of(module, node), blocks.body_of(module, node))
    assigned = max(
        (item for item in above if node.id in blocks.writes(item)), key=lambda item: item.lineno, default=None
    )
    while isinstance(assigned, ast.With):
        assigned = next((item for item in reversed(assigned.body) if node.id in blocks.writes(item)), None)
    if not isinstance(assigned, ast.Assign):
        return None
    for loop in blocks.enclosing(module, node):
        within = loop.lineno < assigned.lineno
        if isinstance(loop, blocks.LOOPS) and not within and node.id in blocks.writes(loop):
            return None
    plain = any(isinstance(target, ast.Name) and target.id == node.id for target in assigned.targets)
    return assigned.value if plain else None
