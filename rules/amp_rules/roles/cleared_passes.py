"""Backward passes that clear a model's gradients, and read those of its weights: the squares of a Fisher information.

All that such a pass reads is what it computed itself, so it is true without a loss scale.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.flow.flow import Flow
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.gradients import GRADIENT

_WEIGHTS = frozenset({"named_parameters", "parameters"})


def reads_of_cleared(flow: Flow, module: Module, body: ast.AST, call: ast.Call) -> frozenset[ast.AST] | None:
    """What reads gradients in the function of a pass, where each is of a model that the pass clears first; else None.

    Args:
        flow: what names may hold.
        module: the file of the pass.
        body: the function of the pass.
        call: the pass.
    """
    statement = blocks.statement_of(module, call)
    cleared = dict(_cleared(flow, blocks.statements_above(module, statement, body)))
    found = set()
    for node in blocks.walk_body(body):
        if not isinstance(node, ast.Attribute) or node.attr != GRADIENT:
            continue
        line = cleared.get(_model_of(module, node))
        if line is None or node.lineno <= line or not isinstance(node.ctx, ast.Load):
            return None
        found.add(node)
    written = {path for part in blocks.own_parts(body) for path in blocks.writes(part)}
    return frozenset(found) if found and not blocks.touches(written, set(cleared)) else None


def _cleared(flow: Flow, statements: Iterable[ast.stmt]) -> Iterator[tuple[str, int]]:
    """The models whose gradients some statements clear, and in which line: ``model.zero_grad()``."""
    for statement in statements:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad":
            path = blocks.path_of(call.func.value)
            if path is not None and not flow.callees(call):
                yield path, statement.lineno


def _model_of(module: Module, access: ast.Attribute) -> str:
    """The model whose parameters the loop around a gradient's reader goes over; nothing where that is not seen."""
    if not isinstance(access.value, ast.Name):
        return ""
    for loop in blocks.enclosing(module, access):
        if not isinstance(loop, ast.For) or access.value.id not in blocks.writes_target(loop):
            continue
        calls = [node for node in walk(loop.iter) if isinstance(node, ast.Call)]
        asked = [
            call.func.value for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in _WEIGHTS
        ]
        return (blocks.path_of(asked[0]) or "") if len(asked) == 1 else ""
    return ""
