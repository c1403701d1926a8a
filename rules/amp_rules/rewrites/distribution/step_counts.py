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

A number that the length of a prepared loader has to be, `assert len(train_loader) == 546`, becomes
`amp.share_of(546, train_loader)` too.

What the features of a data set are made of one by one counts as its samples: `len(examples) / batch_size`.

A number that keeps the last batch out where it is not full, as `if i == len(train_set) // batch_size: break` does, is
made of the samples that one process draws: `len(train_loader.sampler) // batch_size`.

## When it declines
When a schedule is as long as a number that is made of the dataset's length in another way, or when the loader is
not known there (AMP291). When a number keeps the last batch out, and it is not certain that it counts what the loader
draws: one with a sampler of the script's own draws another number.

## Leaving it out
No: the learning rate would follow another schedule.

## Source
https://pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.OneCycleLR.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import notes as noted
from amp_rules.plan.asserted_lengths import asserted_lengths, other_tests
from amp_rules.plan.context import Change, Context
from amp_rules.plan.declining import Declined
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.plan.samples_to_train_on import of_samples
from amp_rules.plan.step_notes import of_steps
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import substitute

RULE = Rule("AMP221", "steps-of-a-rank", "Steps are counted as one process makes them.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each number of steps."""
    for item in [*context.processes.step_counts.counts, *asserted_lengths(context.program, context.processes)]:
        assert isinstance(item.node, ast.expr)
        text = item.module.text(item.node)
        if item.what == "full batches":
            replaced = Replace(item.node, substitute(f"len({item.loader}.sampler)"))
            yield Change(RULE, item.module, item.node, f"`{text}`: as many samples as each process sees", (replaced,))
            continue
        does = "makes" if item.what == "steps" else "sees"
        message = f"`{text}`: as many {item.what} as each process {does}"
        written = context.vocabulary.share_of(item.module, item.node, item.loader)
        yield Change.written(RULE, item.module, item.node, message, written)


def reasons(context: Context) -> Iterator[Declined]:
    """Yield numbers of steps that cannot be made those of a rank."""
    yield from context.processes.step_counts.reasons


def notes(context: Context) -> Iterator[Note]:
    """Yield what is done every so many steps, and the tests of a length that stay as they are."""
    yield from of_steps(context.program, context.processes)
    yield from of_samples(context.processes)
    for site in other_tests(context.program, context.processes):
        text = site.module.text(site.node.test)  # type: ignore[attr-defined]
        said = (
            "asks for the length of one process's share, about 1/N of the whole: with N processes it may end the script"
        )
        yield noted.note(noted.STEPS, site.module, site.node, f"`{text}` {said}")
