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

from amp_rules.plan.context import Change, Context
from amp_rules.plan.rule import Rule
from amp_rules.roles.steps import Site
from amp_rules.torch.writers import WRITERS

RULE = Rule("AMP210", "log-on-main-process", "Only the main process logs.", "distribution", optional=True)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each logging client."""
    for site in filter(_is_kept, context.program.calls_to(WRITERS)):
        assert isinstance(site.node, ast.Call)
        message = f"`{site.module.text(site.node.func)}` logs on the main process only"
        written = context.vocabulary.called_on_main(site.module, site.node.func)
        yield Change.written(RULE, site.module, site.node, message, written)


def _is_kept(site: Site) -> bool:
    """Whether something goes on to use it: a variable, a block, a caller, a list."""
    return not isinstance(site.module.parents[site.node], (ast.Expr, ast.Attribute))
