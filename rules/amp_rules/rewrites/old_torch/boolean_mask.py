"""Give masks as torch.bool.

## What it does
A mask of `torch.uint8` that is handed to `masked_fill`, `masked_select` or `masked_scatter` gets `.bool()`, or has
`.byte()` replaced by it.

## Why
These methods take masks of `torch.bool` only; others raise RuntimeError.

## Before
    scores = scores.masked_fill(mask.byte(), -1e9)

## After
    scores = scores.masked_fill(mask.bool(), -1e9)

## When it declines
Where the mask is not known to be of `torch.uint8`, or where it goes through `~`: that turns over every bit of a byte
since PyTorch 1.2, and `.bool()` of what it gives is true everywhere. Make such a mask by `.bool()`.

## Leaving it out
Yes: the line stays and raises RuntimeError.

## Source
https://pytorch.org/docs/stable/generated/torch.Tensor.masked_fill_.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.edits import receiver
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.text.actions import Replace
from amp_rules.torch import old_torch as old_names

RULE = Rule("AMP519", "boolean-mask", "Masks are of torch.bool.", "modern", optional=True)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each mask."""
    for module, node in old.nodes():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        if node.func.attr not in old_names.MASKED:
            continue
        mask = node.args[0]
        facts = old.tensors.of(module, mask)
        if not facts.byte:
            continue
        if facts.inverted:
            message = f"`{node.func.attr}` refuses `{module.text(mask)}`, a mask of torch.uint8 inverted by `~`"
            old.refuse(RULE, module, mask, message, "make the mask by .bool() in place of .byte()")
            continue
        message = f"`{module.text(mask)}` is of torch.uint8, and `{node.func.attr}` takes torch.bool"
        is_byte = isinstance(mask, ast.Call) and isinstance(mask.func, ast.Attribute) and mask.func.attr == "byte"
        edit = receiver(".bool()", 2) if is_byte else _as_bool
        yield change(RULE, module, mask, message, Replace(mask, edit))


def _as_bool(node: cst.BaseExpression) -> cst.BaseExpression:
    if not isinstance(node, (cst.Name, cst.Attribute, cst.Subscript, cst.Call)) and not getattr(node, "lpar", ()):
        node = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return receiver(".bool()", 0)(node)
