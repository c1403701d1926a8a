"""Samplers that are told one number in every epoch, and keep the order of the first."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.path_objects import assigned
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope


def same_epochs(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first of them: ``sampler.set_epoch(step)`` in a loop, where ``step`` is 0 and is never counted."""
    for call, body, scope in own.program.calls():
        module = scope.module
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "set_epoch" and len(call.args) == 1):
            continue
        if module not in own.modules or body in own.uncalled or blocks.loop_around(module, call) is None:
            continue
        told = call.args[0]
        value = _kept(own, body, told, scope) if isinstance(told, ast.Name) else None
        if isinstance(value, ast.Constant):
            text = f"is {module.text(value)} in every round, so that the sampler keeps one order: tell it the epoch"
            yield module, call, f"`{module.text(told)}` of `{module.text(call)}` {text}"
            return


def _kept(own: OwnDdp, body: ast.AST, name: ast.Name, scope: Scope) -> ast.expr | None:
    """What a variable of a function is assigned, where nothing else gives it a value, in no function within either."""
    if scope.owner(name.id) is not scope or not scope.is_function:
        return None
    nodes = [node for node in ast.walk(body) if isinstance(node, (ast.Name, ast.Global, ast.Nonlocal))]
    others = [node for node in nodes if not isinstance(node, ast.Name) and name.id in node.names]
    stores = [node for node in nodes if isinstance(node, ast.Name) and node.id == name.id and _is_given(node)]
    values = list(assigned(own.program, name, scope))
    return values[0] if len(stores) == 1 and len(values) == 1 and not others else None


def _is_given(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)
