"""Set the same learning rate on all processes.

## What it does
A number of a process's own batches that a learning rate follows goes through `amp.reduce_mean(...)`:
what `ReduceLROnPlateau.step` is given, what is assigned to a parameter group, and the rate that an optimizer is made
with, where a search has found it.

## Why
Each process sees its own batches, so the loss of an epoch differs between them. A schedule that is given it lowers the
rate in another epoch on each, and the copies of the model drift apart without a word.

## Before
    scheduler.step(epoch_loss / len(loader))

## After
    scheduler.step(amp.reduce_mean(epoch_loss / len(loader)))

## When it declines
When the function of a schedule reads what differs between processes (AMP294).

## Leaving it out
No: the copies of the model would drift apart.

## Source
https://pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.remedies import written
from amp_rules.plan.rule import Rule
from amp_rules.plan.sinks import Need

RULE = Rule("AMP212", "same-learning-rate", "All processes set the same learning rate.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each number that a learning rate follows."""
    for item in context.processes.agreed.reductions:
        if item.need is Need.RATE:
            whose = "the main process's" if item.is_taken else "the mean over the processes"
            message = f"`{item.text}` is {whose}, so that all set the same learning rate"
            yield Change.written(RULE, item.module, item.node, message, written(context.vocabulary, item))
