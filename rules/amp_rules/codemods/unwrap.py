"""Save the model itself, not its wrapper.

## What it does
`model.state_dict()` becomes `amp.unwrap(model).state_dict()`, `torch.save(model, ...)` saves `amp.unwrap(model)`, and
`model.module`, which `DataParallel` had, becomes `amp.unwrap(model)`.

## Why
A checkpoint should not tell how many processes wrote it.

## Before
    torch.save(model.state_dict(), "model.pt")

## After
    torch.save(amp.unwrap(model).state_dict(), "model.pt")

## When it declines
Never; where gradients are averaged at the step (`delay_allreduce`), models have no wrapper and nothing is changed.

## Leaving it out
No: a model that is saved whole would take its wrapper along, and what was `model.module` has no such attribute.

## Source
https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from amp_rules.context import Change, Context
from amp_rules.rewrite import ExpressionEdit, Replace, call_with
from amp_rules.rule import Rule

RULE = Rule("AMP204", "unwrap-to-save", "What is saved is the model itself.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each model that is saved."""
    if context.distribution is None:
        return
    for site in context.distribution.unwraps:
        assert isinstance(site.node, ast.expr)
        is_module = isinstance(site.node, ast.Attribute) and site.node.attr == "module"
        if context.distribution.delay and not (is_module and context.distribution.parallel):
            continue
        function = context.code(site.module, "{amp}.unwrap")
        edit = _of_owner(function) if is_module else call_with(function)
        message = f"`{site.module.text(site.node)}` is saved without its wrapper"
        yield Change(RULE, site.module, site.node, message, [Replace(site.node, edit)])


def _of_owner(function: str) -> ExpressionEdit:
    return lambda node: call_with(function)(cst.ensure_type(node, cst.Attribute).value)
