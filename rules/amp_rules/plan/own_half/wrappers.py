"""``FP16_Optimizer``: what it holds, and what each use of it is without it."""

from __future__ import annotations

import ast

from amp_rules.plan.apex.file import NotUnderstood
from amp_rules.plan.own_half.helpers import Helpers
from amp_rules.plan.own_half.own import OwnHalf
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.torch import own_half as names


def wrapped(call: ast.Call, scope: Scope) -> ast.expr:
    """The optimizer that a wrapper is given."""
    given = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "init_optimizer"), None)
    if given is None or isinstance(given, ast.Starred) or any(item.arg is None for item in call.keywords):
        raise NotUnderstood(scope.module, call, "the arguments of the half-precision optimizer are made elsewhere")
    return given


def find_uses(found: OwnHalf, helpers: Helpers) -> None:
    """What is asked of an ``FP16_Optimizer``, and what it is without one."""
    plain = found.plain
    for node, body, scope in found.program.nodes():
        if not isinstance(node, ast.Attribute) or not found.wrappers:
            continue
        is_own = node.attr in names.WRAPPERS_OWN and helpers.is_optimizer(node.value, scope)
        if not (is_own or helpers.is_wrapper(node.value, scope)):
            continue
        if helpers.is_own(body, scope) or (not is_own and helpers.is_of_another(node, scope)):
            continue
        call = scope.module.parents[node]
        found.keeps_state |= node.attr in ("state_dict", "load_state_dict")
        if node.attr == "optimizer":
            plain.replaced[node] = node.value
        elif node.attr == "overflow" and (finite := _finite(body, scope, node)) is not None:
            plain.replaced[node] = finite
        elif not isinstance(call, ast.Call) or call.func is not node:
            if node.attr not in names.KEPT_ATTRIBUTES:
                raise _not_asked(scope, node)
        elif node.attr == "backward" and call.args:
            plain.replaced[call] = _backward(call)
        elif node.attr in names.CLIPPING and call.args and len(call.args) + len(call.keywords) == 1:
            plain.replaced[call] = _clipping(found, call, body, scope)
        elif node.attr == "update_master_grads" and not call.args:
            plain.removed.add(blocks.statement_of(scope.module, call))
        elif node.attr == "zero_grad" and call.keywords:
            plain.replaced[call] = ast.Call(node, [], [])
            plain.clearing.add(call)
        elif node.attr not in names.KEPT_ATTRIBUTES:
            raise _not_asked(scope, node)


def _finite(body: ast.AST, scope: Scope, node: ast.Attribute) -> ast.expr | None:
    """Whether the norm of the gradients overflowed, where the function that asks has clipped them."""
    for item in blocks.walk_body(body):
        if not isinstance(item, ast.Assign) or item.lineno > node.lineno or len(item.targets) != 1:
            continue
        call = item.value
        is_norm = (
            isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in names.CLIPPING
        )
        if is_norm and isinstance(item.targets[0], ast.Name) and "math" in scope.top.bound:
            return ast.parse(f"not math.isfinite({item.targets[0].id})", mode="eval").body
    return None


def _not_asked(scope: Scope, node: ast.Attribute) -> NotUnderstood:
    return NotUnderstood(scope.module, node, f"`{scope.module.text(node)}` has no counterpart in an optimizer of torch")


def _backward(call: ast.Call) -> ast.Call:
    """``loss.backward()`` for ``optimizer.backward(loss)``."""
    kept = [item for item in call.keywords if item.arg == "retain_graph"]
    return ast.Call(ast.Attribute(call.args[0], "backward", ast.Load()), [], kept)


def _clipping(found: OwnHalf, call: ast.Call, body: ast.AST, scope: Scope) -> ast.Call:
    """``torch.nn.utils.clip_grad_norm_`` for the parameters of the model that is trained here."""
    program = found.program
    model: ast.expr | None = None
    for node in program.nodes_of(body):
        if isinstance(node, ast.Call) and blocks.path_of(node.func) is not None:
            if isinstance(node.func, (ast.Name, ast.Attribute)) and any(
                map(program.is_trained, program.roles.modules(node.func, scope))
            ):
                model = node.func
                break
    if model is None or "torch" not in scope.module.source.text:
        raise NotUnderstood(scope.module, call, "the model whose gradients are clipped was not found")
    parameters = ast.Call(ast.Attribute(model, "parameters", ast.Load()), [], [])
    function = ast.parse("torch.nn.utils.clip_grad_norm_", mode="eval").body
    found.plain.parameters.add(parameters)
    return ast.Call(function, [parameters, *call.args, *(item.value for item in call.keywords)], [])
