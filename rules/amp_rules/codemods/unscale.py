"""Unscale gradients before anything looks at them.

## What it does
Inserts `amp.scaler.unscale_(optimizer)` before clipping, and before any other code that reads or changes
gradients between the backward pass and the step.

## Why
Until the step, gradients are multiplied by the scale. A norm of 1.0 would be a norm of 65536, and clipping
at 1.0 would make every step tiny.

## Before
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

## After
    amp.scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    amp.scaler.step(optimizer)

## When it declines
When gradients are read more often than the optimizer steps, or where it cannot be named (AMP195).

## Leaving it out
No: clipping would cut scaled gradients to almost nothing.

## Source
https://pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.context import Change, Context
from amp_rules.rewrite import Insert
from amp_rules.rule import Rule

RULE = Rule("AMP105", "unscale-before-use", "Gradients are unscaled before they are read.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield an insertion for each first look at the gradients of a step."""
    for item in context.precision.unscales:
        code = "\n".join(context.code(item.module, line) for line in item.lines)
        message = f"`{item.what}` sees true gradients, not scaled ones"
        yield Change(RULE, item.module, item.statement, message, [Insert(item.statement, code)])
