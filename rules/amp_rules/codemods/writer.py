"""Log from the main process only.

## What it does
`SummaryWriter(...)` becomes `amp.on_main(SummaryWriter)(...)`: on the other processes it is an object that
accepts every call and does nothing.

## Why
Several writers in one folder make curves that jump back and forth.

## Before
    writer = SummaryWriter("runs")

## After
    writer = amp.on_main(SummaryWriter)("runs")

## When it declines
Never.

## Leaving it out
Yes: training and checkpoints are the same; each process then has curves of its own.

## Source
https://pytorch.org/docs/stable/tensorboard.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.context import Change, Context
from amp_rules.rewrite import Replace, call_with
from amp_rules.rule import Rule

RULE = Rule("AMP210", "log-on-main-process", "Only the main process logs.", "distribution", optional=True)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each logging client."""
    if context.distribution is None:
        return
    for site in context.distribution.writers:
        assert isinstance(site.node, ast.Call)
        edit = call_with(context.code(site.module, "{amp}.on_main"))
        message = f"`{site.module.text(site.node.func)}` logs on the main process only"
        yield Change(RULE, site.module, site.node, message, [Replace(site.node.func, edit)])
