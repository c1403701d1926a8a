"""Run functional batch and instance norm in FP32.

## What it does
`F.batch_norm(...)` and `F.instance_norm(...)` become `amp.float_function(F.batch_norm)(...)`.

## Why
Adaptive norms compute their weights, which are then half, and keep running statistics in FP32: the kernel refuses the
mixture. Modules such as `nn.BatchNorm2d` need nothing: they give the kernel weights and statistics of one type. Nor do
classes derived from them, where they give it their own `self.weight`, `self.bias` and statistics.

## Before
    out = F.batch_norm(x, mean, var, weight, bias, True)

## After
    out = amp.float_function(F.batch_norm)(x, mean, var, weight, bias, True)

## When it declines
Never.

## Leaving it out
No: the kernel refuses the mixture of types with an error.

## Source
https://pytorch.org/docs/stable/generated/torch.nn.functional.batch_norm.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.rule import Rule
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.syntax import is_none, walk
from amp_rules.torch.half_precision import OF_ONE_TYPE

RULE = Rule("AMP109", "functional-norm", "Functional norms run in FP32.", "precision")

_NORMS = frozenset(f"{place}.{norm}" for place in ("torch", "torch.nn.functional") for norm in OF_ONE_TYPE)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each call."""
    for site in context.program.calls_to(_NORMS):
        assert isinstance(site.node, ast.Call)
        if _is_of_torchs_layer(context.program, site, site.node):
            continue
        message = f"`{site.module.text(site.node.func)}` runs in FP32, so that its weights and statistics have one type"
        written = context.vocabulary.in_float32(site.module, site.node.func)
        yield Change.written(RULE, site.module, site.node, message, written)


_HELD = frozenset({"running_mean", "running_var", "weight", "bias"})
"""What torch's layers hold, and give to the function."""


def _is_of_torchs_layer(program: Program, site: Site, call: ast.Call) -> bool:
    """Whether a class derived from torch's batch norm gives what that holds, and puts nothing else in its place."""
    info = program.function_of(site.body)
    owner = program.flow.class_of(info) if info is not None else None
    bases = owner.external_bases() if owner is not None else frozenset()
    if info is None or owner is None or info.receiver is None:
        return False
    if not any(name.startswith("torch.nn.") and name.endswith(_BATCH_NORMS) for name in bases):
        return False
    named = [item.value for item in call.keywords if item.arg in _HELD]
    if any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords):
        return False
    given, receiver = [*call.args[1:5], *named], info.receiver
    if not all(_is_held(item, receiver) for item in given):
        return False
    nodes = [node for part in owner.mro() for node in walk(part.facts.node)]
    updated = {target for node in nodes if isinstance(node, ast.Assign) for target in node.targets if _keeps_type(node)}
    return not any(_may_replace(node) for node in nodes if node not in updated)


_BATCH_NORMS = ("._BatchNorm", ".BatchNorm1d", ".BatchNorm2d", ".BatchNorm3d")


def _is_held(node: ast.expr, receiver: str) -> bool:
    """``self.weight``, ``None``, or one of the two."""
    if isinstance(node, ast.IfExp):
        return _is_held(node.body, receiver) and _is_held(node.orelse, receiver)
    if isinstance(node, ast.Attribute):
        return node.attr in _HELD and isinstance(node.value, ast.Name) and node.value.id == receiver
    return is_none(node)


def _keeps_type(assigned: ast.Assign) -> bool:
    """``self.running_mean = (1 - m) * self.running_mean + m * mean``: a sum with float32 is float32."""
    if len(assigned.targets) != 1 or not isinstance(assigned.targets[0], ast.Attribute):
        return False
    target, terms = ast.unparse(assigned.targets[0]), [assigned.value]
    while terms:
        term = terms.pop()
        if isinstance(term, ast.BinOp) and isinstance(term.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
            terms += [term.left, term.right]
        elif isinstance(term, ast.Attribute) and ast.unparse(term) == target:
            return True
    return False


def _may_replace(node: ast.AST) -> bool:
    """``self.weight = ...``, and what is registered under such a name."""
    if isinstance(node, ast.Attribute):
        return node.attr in _HELD and isinstance(node.ctx, ast.Store)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in _HELD
