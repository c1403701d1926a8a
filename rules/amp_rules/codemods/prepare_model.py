"""Prepare the model for its precision and its processes.

## What it does
`model = amp.prepare_model(model)` once the model is built and its weights are set. Where a step trains
several models, calls them several times or accumulates gradients, `delay_allreduce=True` averages the
gradients over the ranks once, when the optimizer steps, instead of during the backward pass.

## Why
SyncBN, precision and DDP have one right order. Alone and at O0 the call gives the model back untouched; at
O1 it makes the model's outputs FP32, so that metrics, `.numpy()` and losses outside of autocast go on
working.

## Before
    model = Net().to(device)

## After
    model = amp.prepare_model(Net().to(device))

## When it declines
When no variable holds the model for its whole life (AMP196).

## Leaving it out
No: levels from O2 on need it, and several processes too.

## Source
https://pytorch.org/docs/stable/notes/ddp.html; Apex's `delay_allreduce`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.context import Change, Context
from amp_rules.planning.homes import Home
from amp_rules.rewrite import Action, Insert, Replace, add_keyword, call_with
from amp_rules.rule import Rule

_LINE = 110

RULE = Rule("AMP108", "prepare-model", "The model is prepared before it is trained.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each trained model."""
    delay = context.distribution is not None and context.distribution.delay
    more = ["delay_allreduce=True"] if delay else []
    for order, home in enumerate(context.precision.homes):
        function = context.code(home.module, "{amp}.prepare_model")
        message = f"`{home.variable}` gets its precision" + (
            " and joins the other ranks" if context.distribution else ""
        )
        if delay and context.distribution is not None:
            message += f"; gradients are averaged at the step, because {context.distribution.delay_reason}"
        action: Action
        if home.inline is not None and (home.in_place or _fits(home, function, more)):
            action = Replace(home.inline, call_with(function, *more))
        else:
            code = f"{home.variable} = {function}({', '.join([home.variable, *more])})"
            action = Insert(home.statement, code, after=True, order=order)
        yield Change(RULE, home.module, home.statement, message, [action])
    for order, (module, statement, variable) in enumerate(context.precision.reloads):
        function = context.code(module, "{amp}.prepare_model")
        code = f"{variable} = {function}({', '.join([variable, *more])})"
        message = f"`{variable}` is loaded whole, and prepared like the model that it replaces"
        yield Change(RULE, module, statement, message, [Insert(statement, code, after=True, order=order)])
    if delay and context.initialised and context.distribution is not None:
        message = f"gradients are averaged at the step, because {context.distribution.delay_reason}"
        for site in context.program.calls_to(frozenset({"amp_runtime.prepare_model"})):
            assert isinstance(site.node, ast.Call)
            yield Change(RULE, site.module, site.node, message, [Replace(site.node, add_keyword(more[0]))])


def _fits(home: Home, function: str, more: list[str]) -> bool:
    """Whether the constructor's line has room for the call around it."""
    assert home.inline is not None
    line = home.module.lines[home.statement.lineno - 1]
    return len(line) + len(function) + sum(len(item) + 2 for item in more) + 2 <= _LINE
