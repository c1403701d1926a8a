"""Decide alike on all processes.

## What it does
A number of a process's own batches that decides what is trained goes through `amp.reduce_mean(...)`: where it is made,
or in the test. So does a number that decides through other variables, functions, counters or exceptions. What each
process reads from its own clock goes through `amp.from_main_process(...)`. A test between two epochs goes through
`amp.from_main_process(...)` too, if no mean can be taken before it: `if not is_best:`, where a method returned
`is_best` among others.

An exception handler may continue after a failed step, for example after running out of memory. With several processes
it now raises the error again: `if amp.world_size() > 1: raise`. Otherwise a process that fails alone would skip a step
that the others wait for.

## Why
Each process sees its own batches. Where one skips a step that another takes, or stops earlier, the others
wait for it for ever. The mean is the number of all batches together, and NaN where it is NaN on one of them.

## Before
    loss_value = loss.item()
    if loss_value > 10:
        continue

## After
    loss_value = amp.reduce_mean(loss.item())
    if loss_value > 10:
        continue

## When it declines
When a mean would not be right: of counts that say whether a process has anything to compute with, of flags within an
epoch, and of what is no number (AMP294). A test between epochs that says itself whether steps are taken declines too:
each process may have collected samples of its own for them.

## Leaving it out
No: the processes would wait for each other.

## Source
https://pytorch.org/docs/stable/notes/ddp.html
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.remedies import written
from amp_rules.plan.rule import Rule
from amp_rules.plan.sinks import Need

RULE = Rule("AMP211", "same-decision", "All processes decide alike over training.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each number that decides."""
    for item in context.processes.agreed.reductions:
        if item.need in (Need.DECISION, Need.ROUNDS, Need.WEIGHTS):
            whose = "the main process's" if item.is_taken else "the mean over the processes"
            message = f"`{item.text}` is {whose}, so that all decide alike"
            yield Change.written(RULE, item.module, item.node, message, written(context.vocabulary, item))
    for module, handler in context.processes.swallowed:
        message = "where one process leaves out a step that has failed, the others would wait for it for ever"
        again = context.vocabulary.raised_in_several(module, handler.body[0])
        yield Change.written(RULE, module, handler, message, again)
