"""``no_sync`` around a backward pass whose forward pass ran outside of it, where the wrapper decides to average."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL

_NO_SYNC = "no_sync"


def no_sync_below(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield each such block: the gradients are right, and are exchanged in each of the rounds."""
    program = own.program
    if not program.calls_to(DISTRIBUTED_DATA_PARALLEL):
        return
    for node, body, scope in program.nodes():
        module = scope.module
        if not isinstance(node, ast.With) or module not in own.modules or body in own.uncalled:
            continue
        asked = next((call for item in node.items for call in _asked(item.context_expr)), None)
        if asked is None or not any(map(program.runs_backward, node.body)):
            continue
        calls = [part for item in node.body for part in walk(item) if isinstance(part, ast.Call)]
        if not any(map(program.runs_model, calls)):
            text = f"`{module.text(asked)}` is around a backward pass alone, and its forward pass ran outside: torch"
            yield (
                module,
                asked,
                f"{text} decides there whether gradients are averaged, so they are all the same; have both within it",
            )


def _asked(node: ast.expr) -> list[ast.Call]:
    """``model.no_sync()``, which one branch of an expression may hold."""
    calls = [part for part in walk(node) if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)]
    return [call for call in calls if call.func.attr == _NO_SYNC]  # type: ignore[attr-defined]
