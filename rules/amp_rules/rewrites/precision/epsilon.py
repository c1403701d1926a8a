"""Add and clamp to epsilons in FP32 where half precision rounds them away.

## What it does
`x.std(dim=0) + 1e-8` becomes `amp.float_function(torch.add)(x.std(dim=0), 1e-8)` where the tensor is half and is
a divisor, or the argument of a logarithm or root; `clamp(min=1e-8)` likewise. So is a clamp to a bound that rounds to 1
in half: `clamp(cos, -1 + 1e-7, 1 - 1e-7)` before `acos`, or `clamp(p, 1e-4, 1 - 1e-4)` before `log(1 - p)`. A
function that gives back such a clamp of a probability has it in FP32 wherever the logarithm is taken.

## Why
The smallest number of fp16 is 6e-8; 1e-8 is stored as 0. Then it does not prevent a division by zero, and 0 / 0 is NaN.
The fp16 below 1 is 0.9995 and the bfloat16 0.996: `1 - 1e-4` is 1, so the clamp lets 1 through, where the gradient of
`acos` is infinite, and `log(1 - p)` as well.

## Before
    x = (x - x.mean(dim=0)) / (x.std(dim=0) + 1e-8)

## After
    x = (x - x.mean(dim=0)) / amp.float_function(torch.add)(x.std(dim=0), 1e-8)

## When it declines
Where the epsilon is written into a tensor, as in `x[x == 0] = 1e-8`.

## Leaving it out
No: where the tensor is zero the result is NaN in fp16, without an error.

## Source
https://pytorch.org/docs/stable/type_info.html#torch.torch.finfo
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.float32_calls import in_float32
from amp_rules.plan.lost_epsilons import lost_epsilons
from amp_rules.plan.rule import Rule

_WIDENING = frozenset({"AMP106", "AMP112", "AMP113", "AMP116"})
"""Rewrites after which what they change is FP32."""

RULE = Rule(
    "AMP117",
    "epsilon-in-fp32",
    "Epsilons that half precision loses are applied in FP32.",
    "precision",
    after=tuple(sorted(_WIDENING)),
)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each sum and clamp."""
    done: set[ast.AST] = set()
    in_full = {
        (change.module, change.module.span(change.node)) for change in context.made if change.rule.code in _WIDENING
    }
    for site, lost in lost_epsilons(context.program, context.precision, context.options):
        if any((site.module, place) in in_full for place in lost.behind):
            continue
        if isinstance(site.node, ast.BinOp) and not _is_of_tensor_and_number(site.node, lost.stands_first):
            continue
        why = "in half its bound is 1" if lost.beside_one else "fp16 rounds its epsilon to zero"
        message = f"`{site.module.text(site.node)}` runs in FP32: {why}"
        yield from in_float32(context, RULE, site, message, done, tensor_last=lost.stands_first)


def _is_of_tensor_and_number(node: ast.BinOp, number_first: bool) -> bool:
    """Whether an operation is a sum with a number, which is the same either way round."""
    number = node.left if number_first else node.right
    return isinstance(node.op, ast.Add) and isinstance(number, (ast.Constant, ast.Name, ast.Attribute))
