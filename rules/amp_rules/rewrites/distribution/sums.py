"""Sum numbers over all processes before dividing them by the dataset length.

## What it does
A sum or a count that a training loop adds up, and that is divided by the length of the dataset, goes through
`amp.reduce_sum(...)` after the loop. Where the loop evaluates too, over a loader that is not shared out,
`amp.sum_of_shares(total, loader)` sums only what was counted in shares. In one process both give the value unchanged.

## Why
Each process counts its own share, `len(loader.dataset)` counts all samples: with two processes the printed
accuracy would be halved. Samples that are repeated so that all ranks make as many steps count twice.

## Before
    for x, y in train_loader:
        correct += (model(x).argmax(1) == y).sum().item()
    print(correct / len(train_loader.dataset))

## After
    for x, y in train_loader:
        correct += (model(x).argmax(1) == y).sum().item()
    correct = amp.reduce_sum(correct)
    print(correct / len(train_loader.dataset))

## When it declines
Never: a number that is not understood is noted (AMP282).

## Leaving it out
No: what is decided by the number, such as which model is the best, would differ between the processes.

## Source
https://pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import notes as noted
from amp_rules.plan.context import Change, Context
from amp_rules.plan.joint_metrics import stacked_states
from amp_rules.plan.process_notes import of_counts
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.plan.training_loops import Counted
from amp_rules.source.syntax import values_given

RULE = Rule("AMP220", "sum-over-ranks", "What all processes counted is summed.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each sum."""
    sums = context.processes.sums
    for item in sums.after:
        place = item.place
        reduces, loader = _asked(context, place)
        if not reduces:
            continue
        message = f"`{item.path}` of all processes: `{place.module.text(item.why)}` is about the whole dataset"
        written = context.vocabulary.summed_after(place.module, place.statement, item.path, loader)
        yield Change.written(RULE, place.module, place.node, message, written)
    for here in sums.here:
        place = here.place
        reduces, loader = _asked(context, place)
        if not reduces:
            continue
        message = f"`{place.module.text(here.node)}` of all processes: it is divided by the length of the whole dataset"
        written = context.vocabulary.summed(place.module, here.node, loader)
        yield Change.written(RULE, place.module, here.node, message, written)


def _asked(context: Context, place: Counted) -> tuple[bool, str | None]:
    """Whether sums of a place may be of a share, and the loader that says so where that is not known."""
    is_shared = _is_shared(context, place)
    return is_shared is not False, None if is_shared else place.loader


def _is_shared(context: Context, place: Counted) -> bool | None:
    """Whether the sums of a place are always of a share, or never; ``None`` where the loader itself has to say.

    A loader that is prepared where a call is given it keeps its variable, which then holds the whole one.
    """
    call = place.statement.value if isinstance(place.statement, ast.Assign) else None
    if place.loader is None or not isinstance(call, ast.Call):
        return None
    setting, flow = context.processes.setting, context.program.flow
    given = [item for item in values_given(call) if place.module.text(item) == place.loader]
    if any(item in setting.prepared for item in given):
        return True
    calls = [caller.call for info in flow.callees(call) for caller in flow.callers(info)]
    if not any(item in setting.prepared for other in calls for item in values_given(other)):
        return None
    sites = {value.site for item in given for value in flow.values(item, place.scope)}
    rebound = {variable for _, variable in (*setting.rebound, *setting.rebound_after)}
    is_whole = sites and None not in sites and not sites & setting.prepared and place.loader not in rebound
    return False if is_whole else None


def notes(context: Context) -> Iterator[Note]:
    """Yield numbers that are shown and count what one process sees, and those of which each process gets a list."""
    yield from of_counts(context.program, context.processes)
    for site in stacked_states(context.program):
        text = "has no `dist_reduce_fx`: with N processes `compute()` puts those of all together, and this one becomes"
        yield noted.note(
            noted.TOTALS,
            site.module,
            site.node,
            f'a state of a metric {text} a tensor of N entries: name how it is reduced, as `dist_reduce_fx="sum"`',
        )
