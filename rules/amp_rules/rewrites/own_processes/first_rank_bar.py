"""Show one progress bar, in a script with processes of its own.

## What it does
`tqdm(loader)` gets `disable=rank != 0`, by the script's own test for the first rank where it has one.

## Why
Several bars on one terminal overwrite each other.

## Before
    for x, y in tqdm(loader):

## After
    for x, y in tqdm(loader, disable=rank != 0):

## When it declines
Where `disable` is set already, or arguments are passed by `**`, and where not every process gets there.

## Leaving it out
Yes: training is the same with a bar for each process.

## Source
https://tqdm.github.io/docs/tqdm/
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.context import Change
from amp_rules.plan.own_ddp.first_rank import FirstRank
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.progress_bars import progress_bars
from amp_rules.plan.rule import Rule
from amp_rules.text.actions import Replace
from amp_rules.text.line_width import keyword_within

RULE = Rule("AMP236", "bar-of-first-rank", "The first process shows a progress bar.", "distribution", optional=True)


def changes(own: OwnDdp) -> Iterator[Change]:
    """Yield an edit for each progress bar."""
    first_rank = FirstRank(own)
    for site, call in progress_bars(own.program):
        if site.module not in own.modules or own.reach(site.module, call) is not Reach.EVERY:
            continue
        statement = site.statement
        if isinstance(statement, ast.Assign) and own.given_by_rank(site.module, statement):
            continue
        test = first_rank.at(site.module, call)
        if test is not None and not first_rank.is_told_later(site.module, call, test):
            edit = keyword_within(site.module, call, f"disable={test.negated}")
            yield Change(RULE, site.module, call, "one bar for all processes", [Replace(call, edit)])
