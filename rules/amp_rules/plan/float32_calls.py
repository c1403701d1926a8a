"""Edits that run one call of the training step in FP32."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.rule import Rule
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.resolver import names_of
from amp_rules.torch.functions import SCRIPTING

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.MatMult: "matmul",
    ast.Mult: "mul",
    ast.Sub: "sub",
}


def in_float32(
    context: Context,
    rule: Rule,
    site: Site,
    message: str,
    done: set[ast.AST],
    *,
    tensor_last: bool = False,
) -> Iterator[Change]:
    """``amp.float_function`` around a function; a method or an operator becomes the function that it stands for.

    In a function that TorchScript compiles this cannot stand: each call of that function is changed, once.

    Args:
        context: what the rewrites share.
        rule: the rewrite.
        site: the call or operator.
        message: the sentence to show.
        done: the calls that were changed so by the rewrite.
        tensor_last: whether a number stands before the tensor.
    """
    module, node = site.module, site.node
    info = context.program.function_of(site.body)
    if info is not None and any(name in SCRIPTING for name, _ in info.decorators):
        for caller in context.program.flow.callers(info):
            where, call = caller.scope.module, caller.call
            if call not in done and all(change.node is not call for change in context.made):
                done.add(call)
                yield Change.written(rule, where, call, message, context.vocabulary.in_float32(where, call.func))
        return
    if isinstance(node, ast.Call) and _is_called_by_name(context.program, node, site):
        yield Change.written(rule, module, node, message, context.vocabulary.in_float32(module, node.func))
        return
    torch = names_of(module).name_of("torch")
    if torch is None:
        return
    assert isinstance(node, ast.expr)
    if isinstance(node, ast.BinOp):
        function = f"{torch}.{_OPERATORS[type(node.op)]}"
    else:
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        function = f"{torch}.Tensor.{node.func.attr}"
    written = context.vocabulary.called_in_float32(module, node, function, tensor_last=tensor_last)
    yield Change.written(rule, module, node, message, written)


def _is_called_by_name(program: Program, node: ast.Call, site: Site) -> bool:
    """Whether a call is of a library's function, or of a module that an attribute holds, and of no tensor's method."""
    held = program.flow.values(node.func, site.scope)
    return bool(program.callee_names(node, site.scope)) or any(is_module(value) for value in held)
