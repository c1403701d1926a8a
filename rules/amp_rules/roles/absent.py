"""Variables that never hold anything: every place that gives them a value gives ``None``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from amp_rules.source import blocks
from amp_rules.source.scopes import Scope

if TYPE_CHECKING:
    from amp_rules.roles.steps import Program

_MAX_PLACES = 16
"""Variables and parameters that are looked through: an option that is handed on goes through two or three."""


def is_always_none(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a variable is ``None`` whenever it is read, as in ``train(model, optimizer, scheduler=None)``."""
    pending = [(node, scope)]
    seen: set[ast.AST] = set()
    while pending:
        current, inner = pending.pop()
        if isinstance(current, ast.Constant) and current.value is None:
            continue
        if current in seen or len(seen) == _MAX_PLACES or not isinstance(current, ast.Name):
            return False
        seen.add(current)
        given = list(_given(program, current, inner))
        if not given:
            return False
        for value, outer in given:
            if value is None:
                return False
            pending.append((value, outer))
    return True


def _given(program: Program, name: ast.Name, scope: Scope) -> Iterator[tuple[ast.expr | None, Scope]]:
    """What a variable is given, and where; None for what is not a plain assignment or argument."""
    owner = scope.owner(name.id)
    info = program.function_of(owner.node)
    if info is not None and name.id in info.parameters:
        for caller in program.flow.callers(info):
            yield info.argument_or_default(caller.call, name.id), caller.scope
    for node, _, inner in program.nodes():
        if isinstance(node, ast.Name) and node.id == name.id and not isinstance(node.ctx, ast.Load):
            if inner.owner(node.id) is owner:
                statement = blocks.statement_of(inner.module, node)
                if isinstance(statement, ast.Assign) and node in statement.targets:
                    yield statement.value, inner
                else:
                    yield None, inner
