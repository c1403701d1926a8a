"""Gradients that are no number, for which a script puts others: the scaler skips the step all the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.notes import OVERFLOWN_RECORD, note
from amp_rules.plan.report import Note
from amp_rules.plan.training_loops import variable
from amp_rules.plan.unscale_places import Unscale
from amp_rules.roles.gradient_accesses import GradientAccess, gradient_accesses
from amp_rules.roles.program import Program
from amp_rules.source.syntax import own_name, walk
from amp_rules.torch.functions import FINITE_TESTS

_REPLACING = frozenset({"nan_to_num", "nan_to_num_"})
_FILLING = frozenset({"masked_fill_"})


def notes(program: Program, unscales: list[Unscale]) -> Iterator[Note]:
    """Yield one for each statement that does so, where the scaler looks at the gradients before it."""
    told: set[ast.AST] = set()
    for access in gradient_accesses(program) if unscales else ():
        statement = access.statement
        if isinstance(access.node, ast.Attribute) and statement not in told and _mends(access, statement):
            told.add(statement)
            text = f"`{access.module.text(statement)}` replaces what is no number in full precision alone; from O1 on "
            text += "the scaler has found it by then, and skips the step"
            yield note(OVERFLOWN_RECORD, access.module, statement, text)


def _mends(access: GradientAccess, statement: ast.stmt) -> bool:
    """Whether a statement writes other numbers into a gradient where it is infinite or NaN."""
    gradient = variable(access.node)
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Subscript):  # ``p.grad[torch.isnan(p.grad)] = 0``
            return _is_of(target.value, gradient) and _asks(target.slice)
        return _is_of(target, gradient) and (_asks(statement.value) or _is_call(statement.value, _REPLACING))
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if _is_call(call, _FILLING):
        return owner is not None and _is_of(owner, gradient) and any(map(_asks, call.args))
    given = [item.value for item in call.keywords if item.arg == "out"]
    if own_name(call.func) == "nan_to_num_":
        given += [*call.args[:1], *([owner] if owner is not None else [])]
    return _is_call(call, _REPLACING) and any(_is_of(item, gradient) for item in given)


def _is_of(node: ast.expr, gradient: str | None) -> bool:
    """Whether it is the gradient, or its data."""
    path = variable(node)
    return path is not None and gradient is not None and path.removesuffix(".data") == gradient


def _is_call(node: ast.expr, names: frozenset[str]) -> bool:
    return isinstance(node, ast.Call) and own_name(node.func) in names


def _asks(node: ast.expr) -> bool:
    """Whether it asks which numbers are infinite or NaN."""
    return any(isinstance(item, ast.Call) and own_name(item.func) in FINITE_TESTS for item in walk(node))
