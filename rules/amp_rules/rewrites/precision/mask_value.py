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
        number = _number(value)
        if value is None or number is None:
            continue
        if (
            number < -FLOAT16.largest
            and blocks.path_of(call.func.value) is not None
            and names_of(scope.module).name_of("torch")
        ):
            yield Site(scope.module, scope, body, value), call.func.value


def _number(node: ast.expr | None) -> float | None:
    """What is written out as a number or a sum, product or power of numbers: ``-1e9``, ``-2 ** 32 + 1``."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (int, float)) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _number(node.operand)
        return None if operand is None else -operand
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _number(node.left), _number(node.right)
    if left is None or right is None:
        return None
    if isinstance(node.op, ast.Pow):
        return float(left**right) if left > 0 and 0 <= right <= _LARGEST_POWER and left <= _LARGEST_BASE else None
    if isinstance(node.op, (ast.Add, ast.Sub)):
        return left + right if isinstance(node.op, ast.Add) else left - right
    return left * right if isinstance(node.op, ast.Mult) else None


_LARGEST_BASE, _LARGEST_POWER = 100, 128
"""Powers of more are not computed: they may be no floats."""
