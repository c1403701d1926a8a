"""Step the optimizer through the scaler, and update the scale.

## What it does
`optimizer.step()` becomes `amp.scaler.step(optimizer)`; after the last step of a round comes `amp.scaler.update()`.

## Why
The scaler divides the gradients by the scale again and leaves the step out when one of them overflowed, on all ranks
together. Then it adapts the scale, once a round.

## Before
    optimizer.step()

## After
    amp.scaler.step(optimizer)
    amp.scaler.update()

## When it declines
When the optimizer evaluates a closure (AMP191), or when something else than an optimizer of torch changes the weights
(AMP192).

## Leaving it out
No: scaled gradients would reach the weights.

## Source
https://pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from amp_rules.context import Change, Context
from amp_rules.rewrite import ExpressionEdit, Insert, Replace, call_with
from amp_rules.rule import Rule

RULE = Rule("AMP104", "scaler-step", "The scaler decides whether the optimizer steps.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each step and each update."""
    for site in context.precision.steps:
        message = f"`{site.module.text(site.optimizer)}` steps unless its gradients overflowed"
        edit = _step(context.code(site.module, "{amp}.scaler.step"))
        yield Change(RULE, site.module, site.node, message, [Replace(site.call, edit)])
    for module, statement in context.precision.updates:
        code = context.code(module, "{amp}.scaler.update()")
        message = "the scale adapts once a round, after the last step"
        yield Change(RULE, module, statement, message, [Insert(statement, code, after=True)])


def _step(function: str) -> ExpressionEdit:
    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        receiver = cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute).value
        return call_with(function)(receiver)

    return edit
