"""Make schedulers that print nothing.

## What it does
`StepLR(optimizer, 30, verbose=True)` loses `verbose`, and so do the other schedulers of `torch.optim.lr_scheduler`.

## Why
The argument was deprecated in PyTorch 2.2 and is gone: it raises TypeError. The learning rates are the same; what was
printed can be had from `scheduler.get_last_lr()`.

## Before
    scheduler = ReduceLROnPlateau(optimizer, "min", verbose=True)

## After
    scheduler = ReduceLROnPlateau(optimizer, "min")

## When it declines
Where it is given by position: `ReduceLROnPlateau` had other arguments behind it.

## Leaving it out
Yes: the line stays and raises TypeError on a current PyTorch.

## Source
https://pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.edits import without_arguments
from amp_rules.plan.old_torch.old import OldProgram, change
from amp_rules.plan.rule import Rule
from amp_rules.text.actions import Replace
from amp_rules.torch import old_torch as old_names

RULE = Rule("AMP516", "scheduler-verbose", "Schedulers are made without verbose.", "modern", optional=True)


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each scheduler that is asked to print."""
    for use in old.uses_of(old_names.SCHEDULERS):
        call = use.call
        if call is None:
            continue
        for index, item in enumerate(call.keywords):
            if item.arg == "verbose":
                message = "schedulers print nothing any more; `get_last_lr()` gives the learning rates"
                edit = without_arguments(len(call.args) + index)
                yield change(RULE, use.module, call, message, Replace(call, edit))
