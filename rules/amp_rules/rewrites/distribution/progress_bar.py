"""Show one progress bar, not one for each process.

## What it does
`tqdm(loader)` gets `disable=not amp.is_main_process()`. A bar of `progress.bar`, which cannot be told that, is made as
`amp.on_main(Bar)(...)`: on the other processes it is an object that accepts every call and does nothing.

## Why
Several bars on one terminal overwrite each other.

## Before
    for x, y in tqdm(loader):

## After
    for x, y in tqdm(loader, disable=not amp.is_main_process()):

## When it declines
Where `disable` is set already, or arguments are passed by `**`; where a bar of `progress.bar` goes through the batches
itself, or something reads its count.

## Leaving it out
Yes: training is the same with a bar for each process.

## Source
https://tqdm.github.io/docs/tqdm/
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.file_guards import is_guarded
from amp_rules.plan.progress_bars import drawn_bars, progress_bars
from amp_rules.plan.rule import Rule
from amp_rules.text.actions import Replace
from amp_rules.text.line_width import keyword_within

RULE = Rule("AMP206", "one-progress-bar", "Only the main process shows a progress bar.", "distribution", optional=True)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each progress bar."""
    alone = context.processes.files.statements
    for site, call in progress_bars(context.program):
        if is_guarded(site.module, call) or not alone.keys().isdisjoint(site.module.ancestors(call)):
            continue  # only the main process gets there
        edit = keyword_within(site.module, call, f"disable=not {context.vocabulary.is_main_process(site.module)}")
        yield Change(RULE, site.module, call, "one bar for all processes", [Replace(call, edit)], needs_import=True)
    for site in drawn_bars(context.program):
        if is_guarded(site.module, site.node) or not alone.keys().isdisjoint(site.module.ancestors(site.node)):
            continue
        assert isinstance(site.node, ast.Call)
        written = context.vocabulary.called_on_main(site.module, site.node.func)
        yield Change.written(RULE, site.module, site.node, "one bar for all processes", written, optional=True)
