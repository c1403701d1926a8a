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

from amp_rules.context import Change, Context
from amp_rules.rewrite import Replace, call_with
from amp_rules.rule import Rule

RULE = Rule("AMP109", "functional-norm", "Functional norms run in FP32.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each call."""
    for site in context.precision.computed_norms:
        assert isinstance(site.node, ast.Call)
        edit = call_with(context.code(site.module, "{amp}.float_function"))
        message = f"`{site.module.text(site.node.func)}` runs in FP32, so that its weights and statistics have one type"
        yield Change(RULE, site.module, site.node, message, [Replace(site.node.func, edit)])
