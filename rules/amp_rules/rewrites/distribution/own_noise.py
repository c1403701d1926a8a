"""Draw different noise on each process from a generator of the script's own.

## What it does
A generator that a script seeds itself, and draws nothing but noise or augmentation from, gets `amp.seed_of_rank(...)`
around its seed: one that only a dataset's `__getitem__` uses, or only the training step for noise.

## Why
Each process would draw the same noise from it. Other random numbers differ already while a batch is loaded and worked
on.

## Before
    self.rng = np.random.RandomState(seed)

## After
    self.rng = np.random.RandomState(amp.seed_of_rank(seed))

## When it declines
Never. A generator that also splits, orders or chooses stays the same on all processes.

## Leaving it out
Yes: training is right with the same noise on each process, and learns a little less from it.

## Source
https://numpy.org/doc/stable/reference/random/parallel.html
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.own_noise import seeds
from amp_rules.plan.rule import Rule

RULE = Rule("AMP217", "own-noise", "Each process draws noise of its own.", "distribution", optional=True)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each seed of a generator of noise."""
    for site in seeds(context.program, context.processes.data):
        message = f"`{site.module.text(site.node)}` is a different seed on each process"
        written = context.vocabulary.seed_of_rank(site.module, site.node)  # type: ignore[arg-type]
        yield Change.written(RULE, site.module, site.node, message, written)
