"""Draw different random numbers on each process.

## What it does
Puts `amp.seed_by_rank()` before the training loop of a script that draws its batches from the data at random, or
draws noise or dropout masks in a step.

## Why
The processes start from the same random state, so that splits and weights agree; batches drawn from it
would be the same on all of them.

## Before
    while True:
        x, y = get_batch("train")

## After
    amp.seed_by_rank()
    while True:
        x, y = get_batch("train")

## When it declines
When the batches are slices in a fixed order (AMP291).

## Leaving it out
No: the processes would draw the same batches, noise and dropout masks.

## Source
https://pytorch.org/docs/stable/notes/randomness.html
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.context import Change, Context
from amp_rules.rewrite import Insert
from amp_rules.rule import Rule

RULE = Rule("AMP208", "seed-by-rank", "Each process draws batches of its own.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an insertion before each loop of random batches."""
    if context.distribution is None:
        return
    for module, statement in context.distribution.seed_before:
        code = context.code(module, "{amp}.seed_by_rank()")
        message = "from here on each process draws batches, noise and dropout masks of its own"
        yield Change(RULE, module, statement, message, [Insert(statement, code, gap=True)])
