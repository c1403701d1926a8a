"""Download data once.

## What it does
Statements that may download a data set run under `with amp.main_process_first():`.

## Why
Processes that download to one folder at the same time break each other's files; those that come later find
them there.

## Before
    train_set = datasets.MNIST("data", download=True)

## After
    with amp.main_process_first():
        train_set = datasets.MNIST("data", download=True)

## When it declines
Never.

## Source
https://huggingface.co/docs/accelerate/concept_guides/deferring_execution
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.context import Change, Context, adjacent
from amp_rules.rewrite import Wrap
from amp_rules.rule import Rule

RULE = Rule("AMP207", "download-once", "The main process downloads, the others find the files.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield a block for each group of statements that may download."""
    if context.distribution is None:
        return
    for module, first, last in adjacent(context.distribution.downloads):
        header = context.code(module, "with {amp}.main_process_first():")
        yield Change(RULE, module, first, "the main process downloads first", [Wrap(first, last, header)])
