"""Variables that never hold anything: every place that gives them a value gives ``None``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.flow import Flow
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk

_MAX_PLACES = 16
"""Variables and parameters that are looked through: an option that is handed on goes through two or three."""


def is_always_none(flow: Flow, node: ast.expr, scope: Scope) -> bool:
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
        given = list(_given(flow, current, inner))
        if not given:
            return False
        for value, outer in given:
            if value is None:
                return False
            pending.append((value, outer))
    return True


def _given(flow: Flow, name: ast.Name, scope: Scope) -> Iterator[tuple[ast.expr | None, Scope]]:
    """What a variable is given, and where; None for what is not a plain assignment or argument."""
    owner = scope.owner(name.id)
    info = flow.functions.get(owner.node)
    if info is not None and name.id in info.parameters:
        for caller in flow.callers(info):
            yield info.argument_or_default(caller.call, name.id), caller.scope
    # Variables of this name in functions further in count too: one more value says no more than that it is not known.
    for node in walk(owner.node):
        if isinstance(node, ast.Name) and node.id == name.id and not isinstance(node.ctx, ast.Load):
            statement = blocks.statement_of(owner.module, node)
            inner = flow.scopes.get(blocks.body_of(owner.module, node))
            if inner is not None and isinstance(statement, ast.Assign) and node in statement.targets:
                yield statement.value, inner
            else:
                yield None, owner
