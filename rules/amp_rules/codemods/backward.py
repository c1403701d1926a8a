"""Scale the loss before the backward pass.

## What it does
`loss.backward()` becomes `amp.scaler.scale(loss).backward()`. Arguments such as `retain_graph=True` stay. A
loss that is computed in the same statement gets a statement of its own, under autocast.

## Why
Gradients in fp16 vanish below 6e-8. The scaler multiplies the loss, and so every gradient, by a factor that
keeps them in range; it is 1 in FP32 and bf16.

## Before
    loss.backward()

## After
    amp.scaler.scale(loss).backward()

## When it declines
Together with the other parts of the step.

## Leaving it out
No: the scaler would divide gradients by a scale that the loss was never multiplied by.

## Source
https://pytorch.org/docs/stable/amp.html#gradient-scaling
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.context import Change, Context
from amp_rules.program.steps import Backward
from amp_rules.program.syntax import walk
from amp_rules.rewrite import Action, Insert, Replace, call_with, substitute
from amp_rules.rule import Rule

RULE = Rule("AMP103", "scaled-backward", "The backward pass starts from the scaled loss.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each backward pass."""
    for site in context.precision.backwards:
        if site.is_scaled:
            continue
        text = site.module.text(site.loss)
        message = f"`{text}` is scaled before its backward pass, so that small gradients survive in half"
        if context.program.runs_model(site.loss):
            yield Change(RULE, site.module, site.node, message, _with_own_statement(context, site))
            continue
        edit = call_with(context.code(site.module, "{amp}.scaler.scale"))
        yield Change(RULE, site.module, site.node, message, [Replace(site.loss, edit)])


def _with_own_statement(context: Context, site: Backward) -> list[Action]:
    """``f(model(x)).backward()``: the loss is computed under autocast first."""
    names = {node.id for node in walk(site.module.tree) if isinstance(node, ast.Name)}
    name = next(item for item in ("loss", "total_loss", "step_loss", "unscaled_loss") if item not in names)
    code = context.code(site.module, "with {amp}.autocast():") + f"\n    {name} = {ast.unparse(site.loss)}"
    scaled = context.code(site.module, "{amp}.scaler.scale") + f"({name})"
    return [Insert(site.statement, code), Replace(site.loss, substitute(scaled))]
