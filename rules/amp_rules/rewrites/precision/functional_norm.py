"""Run functional batch and instance norm in FP32.

## What it does
`F.batch_norm(...)` and `F.instance_norm(...)` become `amp.float_function(F.batch_norm)(...)`.

## Why
Adaptive norms compute their weights, which are then half, and keep running statistics in FP32: the kernel refuses the
mixture. Modules such as `nn.BatchNorm2d` need nothing.

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
from amp_rules.torch.half_precision import OF_ONE_TYPE

RULE = Rule("AMP109", "functional-norm", "Functional norms run in FP32.", "precision")

_NORMS = frozenset(f"{place}.{norm}" for place in ("torch", "torch.nn.functional") for norm in OF_ONE_TYPE)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each call."""
    for site in context.program.calls_to(_NORMS):
        assert isinstance(site.node, ast.Call)
        message = f"`{site.module.text(site.node.func)}` runs in FP32, so that its weights and statistics have one type"
        written = context.vocabulary.in_float32(site.module, site.node.func)
        yield Change.written(RULE, site.module, site.node, message, written)
