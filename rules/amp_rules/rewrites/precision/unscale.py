"""Unscale gradients before anything reads them.

## What it does
Inserts `amp.scaler.unscale_(optimizer)` before clipping, and before any other code that reads or changes
gradients which a backward pass left scaled: `p.grad`, `getattr(p, "grad")`, functions that clip. The optimizer is the
one that holds these very gradients. A further backward pass scales them again by itself.

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
When no optimizer holds the gradients, when it cannot be named there, or when the script changes weights by their
gradients itself (AMP195).

## Leaving it out
No: clipping would cut scaled gradients to almost nothing.

## Source
https://pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan import gradient_histograms
from amp_rules.plan.context import Change, Context
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule

RULE = Rule("AMP105", "unscale-before-use", "Gradients are unscaled before they are read.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield an insertion for each first look at the gradients of a step."""
    for item in context.precision.unscales:
        message = f"`{item.what}` gets true gradients, not scaled ones"
        written = context.vocabulary.unscale(item.module, item.statement, item.optimizers)
        yield Change.written(RULE, item.module, item.statement, message, written)


def notes(context: Context) -> Iterator[Note]:
    """Yield what looks at gradients and fails where they overflowed."""
    yield from gradient_histograms.notes(context.program)
