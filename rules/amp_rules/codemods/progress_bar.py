"""Show one progress bar, not one for each process.

## What it does
`tqdm(loader)` gets `disable=not amp.is_main_process()`.

## Why
Several bars on one terminal overwrite each other.

## Before
    for x, y in tqdm(loader):

## After
    for x, y in tqdm(loader, disable=not amp.is_main_process()):

## When it declines
Where `disable` is set already, or arguments are passed by `**`.

## Leaving it out
Yes: training is the same with a bar for each process.

## Source
https://tqdm.github.io/docs/tqdm/
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.context import Change, Context
from amp_rules.rewrite import Replace, add_keyword
from amp_rules.rule import Rule

RULE = Rule("AMP206", "one-progress-bar", "Only the main process shows a progress bar.", "distribution", optional=True)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each progress bar."""
    if context.distribution is None:
        return
    for site in context.distribution.bars:
        assert isinstance(site.node, ast.expr)
        edit = add_keyword(context.code(site.module, "disable=not {amp}.is_main_process()"))
        yield Change(RULE, site.module, site.node, "one bar for all processes", [Replace(site.node, edit)])
