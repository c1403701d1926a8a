"""Switches that a function is given, by what its callers say."""

from __future__ import annotations

import ast
from collections.abc import Set

from amp_rules.roles.program import Program
from amp_rules.roles.sites import calling
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope

_MAX_CALLERS = 3
"""Functions that hand a switch on: ``train_epoch``, ``step``, ``scaler.__call__``."""


def may_be_true(
    program: Program, value: ast.expr, scope: Scope, depth: int = _MAX_CALLERS, idle: Set[ast.AST] = frozenset()
) -> bool:
    """Whether an argument may be true: not where it is False, or a parameter that is False in every call.

    Calls in ``idle`` functions, which nothing runs, do not count.
    """
    if isinstance(value, ast.Constant):
        return bool(value.value)
    info = program.flow.functions.get(scope.owner(value.id).node) if isinstance(value, ast.Name) else None
    if info is None or not isinstance(value, ast.Name) or value.id not in info.parameters or not depth:
        return True
    if any(value.id in blocks.writes(item) for item in blocks.own_parts(info.node)):
        return True
    callers = [item for item in program.flow.callers(info) if not idle or calling(item).body not in idle]
    given = [(info.argument_or_default(item.call, value.id), item.scope) for item in callers]
    return not given or any(item is None or may_be_true(program, item, where, depth - 1, idle) for item, where in given)
