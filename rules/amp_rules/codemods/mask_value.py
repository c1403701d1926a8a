"""Fill masks with a number that the tensor's type can hold.

## What it does
`scores.masked_fill(mask, -1e9)` becomes `scores.masked_fill(mask, max(-1e9, torch.finfo(scores.dtype).min))`.

## Why
Under autocast the scores are fp16, whose largest number is 65504: torch raises "value cannot be converted to type Half
without overflow". In FP32 the number stays what it was.

## Before
    scores = scores.masked_fill(mask == 0, -1e9)

## After
    scores = scores.masked_fill(mask == 0, max(-1e9, torch.finfo(scores.dtype).min))

## When it declines
Where the tensor has no name, or the file does not import torch.

## Leaving it out
No: torch raises where the number does not fit.

## Source
https://pytorch.org/docs/stable/type_info.html#torch.torch.finfo
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.context import Change, Context
from amp_rules.program.head import torch_name
from amp_rules.rewrite import Replace, call_with
from amp_rules.rule import Rule

RULE = Rule("AMP110", "mask-value", "Masks are filled with a number that fp16 can hold.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each fill value outside fp16's range."""
    for site in context.precision.constants:
        assert isinstance(site.node, ast.expr)
        call = site.module.parents[site.node]
        while not isinstance(call, ast.Call):
            call = site.module.parents[call]
        assert isinstance(call.func, ast.Attribute)
        tensor = ast.unparse(call.func.value)
        edit = call_with("max", f"{torch_name(site.module)}.finfo({tensor}.dtype).min")
        message = f"`{site.module.text(site.node)}` does not fit in fp16, which ends at 65504"
        yield Change(RULE, site.module, site.node, message, [Replace(site.node, edit)], uses_runtime=False)
