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

from amp_rules.plan.context import Change, Context
from amp_rules.plan.rule import Rule
from amp_rules.roles.steps import Program, Site
from amp_rules.source import blocks
from amp_rules.source.resolver import names_of
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import call_with
from amp_rules.torch.half_precision import FLOAT16

RULE = Rule("AMP110", "mask-value", "Masks are filled with a number that fp16 can hold.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each fill value outside fp16's range."""
    for site, tensor in _too_large(context.program):
        assert isinstance(site.node, ast.expr)
        edit = call_with("max", f"{names_of(site.module).name_of('torch')}.finfo({ast.unparse(tensor)}.dtype).min")
        message = f"`{site.module.text(site.node)}` does not fit in fp16, which ends at {FLOAT16.largest:g}"
        yield Change(RULE, site.module, site.node, message, [Replace(site.node, edit)])


def _too_large(program: Program) -> Iterator[tuple[Site, ast.expr]]:
    """Fill values of masks that fp16 cannot hold, each with the tensor that is filled."""
    for call, body, scope in program.calls():
        if not (isinstance(call.func, ast.Attribute) and call.func.attr in ("masked_fill", "masked_fill_")):
            continue
        value = (
            call.args[1] if len(call.args) == 2 else next((k.value for k in call.keywords if k.arg == "value"), None)
        )
        if not isinstance(value, ast.UnaryOp) or not isinstance(value.op, ast.USub):
            continue
        number = value.operand
        if not isinstance(number, ast.Constant) or not isinstance(number.value, (int, float)):
            continue
        if (
            number.value > FLOAT16.largest
            and blocks.path_of(call.func.value) is not None
            and names_of(scope.module).name_of("torch")
        ):
            yield Site(scope.module, scope, body, value), call.func.value
