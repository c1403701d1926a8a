"""Give each process its share of the training data.

## What it does
The loader that feeds a training loop goes through `amp.prepare_loader(...)`: alone it is the loader itself,
under torchrun each process gets its share, in a new order every epoch. Loaders for evaluation stay whole on
every process.

## Why
Without it every process trains on the same batches, at the price of several devices and the effect of one.
A loader that is evaluated too is wrapped in the training loop only, so that its metrics stay those of all
data. One that comes from a file in which nothing else changes is prepared at the variable that takes it.

## Before
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)

## After
    train_loader = amp.prepare_loader(DataLoader(train_set, batch_size=64, shuffle=True))

## When it declines
When no loader feeds the loop (AMP291).

## Leaving it out
No: every process would train on the same batches.

## Source
https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.context import Change, Context
from amp_rules.program import blocks
from amp_rules.program.steps import Site
from amp_rules.rewrite import Action, Insert, Replace, call_with
from amp_rules.rule import Rule

_LINE = 88

RULE = Rule("AMP202", "prepare-loader", "Each process gets its share of the training data.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each loader of training data."""
    if context.distribution is None:
        return
    for site in context.distribution.loaders:
        function = context.code(site.module, "{amp}.prepare_loader")
        message = f"`{site.module.text(site.node)}` gives each process its share, in a new order every epoch"
        yield Change(RULE, site.module, site.node, message, [_action(site, function)])
    for rebinding in context.distribution.rebindings:
        function = context.code(rebinding.module, "{amp}.prepare_loader")
        code = f"{rebinding.variable} = {function}({rebinding.variable})"
        message = f"`{rebinding.variable}` gives each process its share, in a new order every epoch"
        yield Change(
            RULE,
            rebinding.module,
            rebinding.statement,
            message,
            [Insert(rebinding.statement, code, after=rebinding.after)],
        )


def _action(site: Site, function: str) -> Action:
    """Around a constructor of one line; else a line of its own, which leaves the constructor as it is."""
    assert isinstance(site.node, ast.expr)
    statement = site.statement
    if isinstance(statement, ast.Assign) and statement.value is site.node and len(statement.targets) == 1:
        variable = blocks.path_of(statement.targets[0])
        (_, start), (_, end) = site.module.start(statement), site.module.end(statement)
        is_long = statement.lineno != statement.end_lineno or end - start > _LINE
        if variable is not None and is_long and not isinstance(statement.targets[0], ast.Subscript):
            return Insert(statement, f"{variable} = {function}({variable})", after=True)
    return Replace(site.node, call_with(function))
