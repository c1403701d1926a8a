"""Count the steps of a rank where they are worked out of the dataset's length.

## What it does
A number of steps such as `len(train_set) // batch_size` becomes `amp.share_of(len(train_set) // batch_size,
train_loader)`: as many as one process makes. Alone it is the number itself.

## Why
With N processes an epoch has one Nth of the steps, so a warmup would last N times as long, and a schedule would
never come to its end. `len(train_loader)` is that of a rank's share already.

## Before
    total_steps = epochs * (len(train_set) // batch_size)

## After
    total_steps = epochs * amp.share_of(len(train_set) // batch_size, train_loader)

## When it declines
When a schedule is as long as a number that is made of the dataset's length in another way, or when the loader is
not known there (AMP291).

## Leaving it out
No: the learning rate would follow another schedule.

## Source
https://pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.OneCycleLR.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.declining import Declined
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.plan.step_notes import of_steps

RULE = Rule("AMP221", "steps-of-a-rank", "Steps are counted as one process makes them.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each number of steps."""
    for item in context.processes.step_counts.counts:
        assert isinstance(item.node, ast.expr)
        does = "makes" if item.what == "steps" else "sees"
        message = f"`{item.module.text(item.node)}`: as many {item.what} as each process {does}"
        written = context.vocabulary.share_of(item.module, item.node, item.loader)
        yield Change.written(RULE, item.module, item.node, message, written)


def reasons(context: Context) -> Iterator[Declined]:
    """Yield numbers of steps that cannot be made those of a rank."""
    yield from context.processes.step_counts.reasons


def notes(context: Context) -> Iterator[Note]:
    """Yield what is done every so many steps."""
    yield from of_steps(context.program, context.processes)
