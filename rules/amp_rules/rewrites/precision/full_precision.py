"""Keep what `torch.autograd.grad` differentiates in FP32.

## What it does
Wraps the statements from the model's call to `torch.autograd.grad` in `with amp.autocast(enabled=False):`.

## Why
These gradients (a gradient penalty, the inner steps of meta-learning) are not scaled, so in fp16 they would
vanish; and their squares, which a penalty sums, overflow early.

## Before
    scores = critic(mixed)
    gradients = torch.autograd.grad(scores.sum(), mixed, create_graph=True)[0]

## After
    with amp.autocast(enabled=False):
        scores = critic(mixed)
        gradients = torch.autograd.grad(scores.sum(), mixed, create_graph=True)[0]

## When it declines
Never; code outside of any region runs in FP32 anyway.

## Leaving it out
No: the gradients inside vanish or overflow in half, without an error.

## Source
https://pytorch.org/docs/stable/notes/amp_examples.html#gradient-penalty
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.rule import Rule

RULE = Rule("AMP107", "autograd-grad-in-fp32", "What torch.autograd.grad differentiates stays in FP32.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield a block for each run that feeds ``torch.autograd.grad``."""
    for run in context.precision.full_precision:
        message = "gradients from `torch.autograd.grad` are not scaled, so what they come from stays in FP32"
        written = context.vocabulary.without_autocast(run.module, run.first, run.last)
        yield Change.written(RULE, run.module, run.first, message, written)
