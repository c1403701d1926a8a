"""What is the same whatever a gradient is multiplied by: signs, comparisons with zero, places of the largest.

A quotient of gradients is not: where a scaled gradient overflows, it is no number, and what is computed from it is none
either; the sign of what is no number is zero.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.roles.gradient_accesses import GradientAccess
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import is_none, own_name, walk
from amp_rules.torch.gradients import (
    FACTS_OF_TENSORS,
    GRADIENT,
    GROWS_WITH_GRADIENT,
    MADE_IN_ITS_SHAPE,
    SCALE_FREE,
    SHAPED_BY_ANOTHER,
)

_MAX_CALLS = 3
"""Functions that hand a gradient on to each other: an attack calls a helper, which calls one for the step."""

_Asked = frozenset[tuple[ast.AST, str]]
"""The variables, by the body that they belong to, of which it is being asked what becomes of them."""
_NOT_ASKED: _Asked = frozenset()


def is_scale_free(program: Program, access: GradientAccess) -> bool:
    """Whether all that comes of a gradient which is read is the same in any unit."""
    if not isinstance(access.node, ast.Attribute) or not isinstance(access.node.ctx, ast.Load):
        return False
    return _ends_free(program, access.module, access.scope, access.node, _NOT_ASKED)


def keeps_scale(info: FunctionFacts) -> bool:
    """Whether a hook gives back a gradient that grows with the one it is given, and does nothing else with it."""
    node = info.node
    by_place = info.by_place[1:] if info.cls is not None and not info.is_static else info.by_place
    given = set(by_place[:1])
    if isinstance(node, ast.Lambda):
        return degree_of(node.body, given) == 1
    return _keeps(node.body, given)


def _keeps(suite: list[ast.stmt], known: set[str]) -> bool:
    """The same for statements of a hook, with the variables that hold the gradient; one that ends gives it back."""
    for statement in suite:
        if isinstance(statement, ast.Return):
            return statement.value is None or is_none(statement.value) or degree_of(statement.value, known) == 1
        if isinstance(statement, ast.If) and degree_of(statement.test, known) == 0:
            branches = [statement.body, statement.orelse]
            # What one branch assigns is not followed behind it.
            if any(isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) for node in walk(statement)):
                return False
            if all(_keeps(branch, known) for branch in branches):
                continue
            return False
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            degree = degree_of(statement.value, known)
            if isinstance(target, ast.Name) and degree in (0, 1):
                known = known | {target.id} if degree else known - {target.id}
                continue
            if isinstance(target, ast.Subscript) and degree_of(target, known) == 1:
                # ``gradient[rows] = 0``: zero is the same in any unit.
                if degree == 1 or _is_zero(statement.value):
                    continue
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, (ast.Mult, ast.Div)):
            if degree_of(statement.target, known) == 1 and degree_of(statement.value, known) == 0:
                continue
        if isinstance(statement, ast.Pass) or (
            isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        ):
            continue
        return False
    return True


def _ends_free(program: Program, module: Module, scope: Scope, node: ast.expr, asked: _Asked) -> bool:
    """Whether a gradient that an expression gives ends in something that is the same in any unit."""
    current: ast.AST = node
    while True:
        parent = module.parents[current]
        if isinstance(parent, ast.keyword) or (isinstance(parent, ast.Attribute) and _is_called(module, parent)):
            current = parent
            continue
        if isinstance(parent, ast.Call) and current in (*parent.args, *parent.keywords):
            callees = program.flow.callees(parent)
            if callees:
                return len({body for body, _ in asked}) <= _MAX_CALLS and all(
                    _takes_free(program, info, parent, current, asked) for info in callees
                )
        if not isinstance(parent, ast.expr):
            break
        degree = degree_of(parent, set(), node)
        if degree == 0:
            return True
        if degree is None:
            return False
        current = parent
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        return _all_free(program, module, scope, parent.targets[0].id, asked)
    return isinstance(parent, ast.Expr) and isinstance(current, ast.Attribute | ast.Name)


def _is_called(module: Module, node: ast.Attribute) -> bool:
    call = module.parents.get(node)
    return isinstance(call, ast.Call) and call.func is node


def _all_free(program: Program, module: Module, scope: Scope, name: str, asked: _Asked) -> bool:
    """Whether every read of a variable of the body ends in something that is the same in any unit."""
    body = scope.node
    if (body, name) in asked:
        return True  # ``g = g.sum()``: the question is being answered
    asked = asked | {(body, name)}
    if not isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)) or scope.owner(name) is not scope:
        return False
    for node in walk(body):
        if isinstance(node, FunctionNode) and node is not body:
            if any(isinstance(item, ast.Name) and item.id == name for item in walk(node)):
                inner = {item.arg for item in walk(node.args) if isinstance(item, ast.arg)}
                if name not in inner:
                    return False
    reads = [
        node
        for node in program.nodes_of(body)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    ]
    changed = any(
        isinstance(node, ast.AugAssign) and blocks.path_of(node.target) == name for node in program.nodes_of(body)
    )
    return not changed and all(_ends_free(program, module, scope, node, asked) for node in reads)


def _takes_free(program: Program, info: FunctionFacts, call: ast.Call, given: ast.AST, asked: _Asked) -> bool:
    """Whether a function of the project makes nothing of an argument that depends on its unit."""
    value = given.value if isinstance(given, ast.keyword) else given
    for name in info.parameters:
        if info.argument(call, name) is value:
            scope = program.flow.scopes[info.node]
            return _all_free(program, info.module.module, scope, name, asked)
    return False


# ---- degrees -------------------------------------------------------------------------------------------------


def degree_of(node: ast.expr, graded: set[str], source: ast.expr | None = None) -> int | None:
    """With which power of the gradient an expression grows: 0, 1, or None where it is neither.

    Args:
        node: the expression.
        graded: variables that hold a gradient.
        source: the expression that reads it.
    """

    def degree(part: ast.expr) -> int | None:
        return degree_of(part, graded, source)

    if _is_gradient(node, graded, source):
        return 1
    if not any(_is_gradient(part, graded, source) for part in walk(node)):
        return 0
    if isinstance(node, ast.Attribute):
        if node.attr in FACTS_OF_TENSORS:
            return 0
        return degree(node.value) if node.attr in GROWS_WITH_GRADIENT else None
    if isinstance(node, ast.Subscript):
        return degree(node.value) if degree(node.slice) == 0 else None
    if isinstance(node, ast.UnaryOp):
        inner = degree(node.operand)
        return inner if isinstance(node.op, (ast.USub, ast.UAdd)) or inner == 0 else None
    if isinstance(node, ast.BinOp):
        return _degree_of_operation(node, degree(node.left), degree(node.right))
    if isinstance(node, ast.Compare):
        return _degree_of_comparison(node, [degree(side) for side in (node.left, *node.comparators)])
    if isinstance(node, (ast.Tuple, ast.List)):
        degrees = {degree(item) for item in node.elts if not is_none(item)}
        return degrees.pop() if len(degrees) == 1 else None
    return _degree_of_call(node, degree) if isinstance(node, ast.Call) else None


def _is_gradient(node: ast.AST, graded: set[str], source: ast.expr | None) -> bool:
    if isinstance(node, ast.Name):
        return node.id in graded or node is source
    return node is source or (isinstance(node, ast.Attribute) and node.attr == GRADIENT)


def _degree_of_operation(node: ast.BinOp, left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return None
    if isinstance(node.op, (ast.Mult, ast.MatMult)):
        return left + right if left + right < 2 else None
    if isinstance(node.op, ast.Div):
        return left if right == 0 else None
    if isinstance(node.op, (ast.Add, ast.Sub, ast.BitAnd, ast.BitOr)):
        return left if left == right else None
    return 0 if left == right == 0 else None


def _degree_of_comparison(node: ast.Compare, degrees: list[int | None]) -> int | None:
    if all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
        return 0
    if None in degrees:
        return None
    sides = [node.left, *node.comparators]
    alike = all(degree == 1 or _is_zero(side) for side, degree in zip(sides, degrees, strict=True))
    return 0 if alike or not any(degrees) else None


def _degree_of_call(node: ast.Call, degree: object) -> int | None:
    assert callable(degree)
    name = own_name(node.func)
    given: list[ast.expr] = [*node.args, *(item.value for item in node.keywords)]
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    of_owner = degree(owner) if owner is not None else 0
    if name in MADE_IN_ITS_SHAPE:
        return 0
    if name in SHAPED_BY_ANOTHER and owner is not None:
        return of_owner
    degrees: Iterable[int | None] = [degree(item) for item in given]
    found = [of_owner, *degrees]
    if None in found:
        return None
    if sum(item or 0 for item in found) == 0:
        return 0
    if found.count(1) > 1:
        return None
    if name in SCALE_FREE:
        return 0
    if name in FACTS_OF_TENSORS:
        return 0
    return 1 if name in GROWS_WITH_GRADIENT else None


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value
