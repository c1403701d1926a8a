"""Give factors of sums and products by name.

## What it does
`p.add_(-lr, grad)` becomes `p.add_(grad, alpha=-lr)`, `p.addcdiv_(-step, m, v)` becomes `p.addcdiv_(m, v,
value=-step)`, and `x.addmm(beta, alpha, a, b)` becomes `x.addmm(a, b, beta=beta, alpha=alpha)`; the functions of
`torch` likewise.

## Why
The factor before the tensors is deprecated since PyTorch 1.5.

## Before
    exp_avg.mul_(beta1).add_(1 - beta1, grad)

## After
    exp_avg.mul_(beta1).add_(grad, alpha=1 - beta1)

## When it declines
For `add` and `sub` of what is not known to be a tensor: other objects have such methods.

## Leaving it out
Yes: PyTorch still takes them, with a warning.

## Source
https://pytorch.org/docs/stable/generated/torch.add.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.edits import arguments_in_order
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.source.modules import Module
from amp_rules.text.actions import Replace
from amp_rules.torch import old_torch as old_names

RULE = Rule("AMP512", "scalar-arguments", "Factors are given by name.", "modern", optional=True, only_asked=True)

Order = list[tuple[int, str]]


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each call with a factor before its tensors."""
    for module, node in old.nodes():
        if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Attribute, ast.Name)):
            continue
        order = _order(old, module, node)
        if order is not None:
            factors = " and ".join(name for _, name in order if name)
            message = f"`{factors}` of `{module.text(node)}` is given by name"
            yield change(RULE, module, node, message, Replace(node, arguments_in_order(order)))


def _order(old: OldProgram, module: Module, node: ast.Call) -> Order | None:
    """The arguments in their present order, by their old positions."""
    if any(isinstance(item, ast.Starred) for item in node.args):
        return None
    if any(item.arg in ("alpha", "beta", "value", "other", None) for item in node.keywords):
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    base = name.removesuffix("_")
    by_method, by_function = _method_order(base, len(node.args)), _function_order(base, len(node.args))
    if by_method is None and by_function is None:
        return None
    target = old.tensors.target(module, node.func)
    if target is not None:
        return by_function if target == f"torch.{base}" else None
    if by_method is None or not isinstance(node.func, ast.Attribute):
        return None
    return by_method if base != name or old.tensors.of(module, node.func.value).tensor else None


def _method_order(name: str, count: int) -> Order | None:
    if name in old_names.SCALED and count == 2:
        return [(1, ""), (0, "alpha")]
    if name in old_names.VALUED and count == 3:
        return [(1, ""), (2, ""), (0, "value")]
    if name in old_names.PRODUCTS and count == 3:
        return [(1, ""), (2, ""), (0, "beta")]
    if name in old_names.PRODUCTS and count == 4:
        return [(2, ""), (3, ""), (0, "beta"), (1, "alpha")]
    return None


def _function_order(name: str, count: int) -> Order | None:
    if name in old_names.SCALED and count == 3:
        return [(0, ""), (2, ""), (1, "alpha")]
    if name in old_names.VALUED and count == 4:
        return [(0, ""), (2, ""), (3, ""), (1, "value")]
    if name in old_names.PRODUCTS and count == 5:
        return [(1, ""), (3, ""), (4, ""), (0, "beta"), (2, "alpha")]
    return None
