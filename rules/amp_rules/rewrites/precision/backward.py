"""Scale the loss before the backward pass.

## What it does
`loss.backward()` becomes `amp.scaler.scale(loss).backward()`. Arguments such as `retain_graph=True` stay. A
loss that is computed in the same statement gets a statement of its own, under autocast. Gradients that the script
itself begins with stay as they are, `torch.autograd.backward(losses, gradients)`: what is computed from them is linear
in the losses' scale.

## Why
Gradients in fp16 vanish below 6e-8. The scaler multiplies the loss, and so every gradient, by a factor that
keeps them in range; it is 1 in FP32 and bf16.

## Before
    loss.backward()

## After
    amp.scaler.scale(loss).backward()

## When it declines
When `loss.backward` is used as a value or reached by its name (AMP194), and together with the other parts of the step.

## Leaving it out
No: the scaler would divide gradients by a scale that the loss was never multiplied by.

## Source
https://pytorch.org/docs/stable/amp.html#gradient-scaling
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.rule import Rule
from amp_rules.source.resolver import free_name
from amp_rules.text.vocabulary import LOSS_NAMES

RULE = Rule("AMP103", "scaled-backward", "The backward pass starts from the scaled loss.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each backward pass."""
    for site in context.precision.backwards:
        if site.is_scaled:
            continue
        text = site.module.text(site.loss)
        message = (
            f"`{text}` is scaled before its backward pass, so that small gradients do not vanish in half precision"
        )
        # ``f(model(x)).backward()``: the loss is computed under autocast first.
        variable = free_name(site.module, LOSS_NAMES) if context.program.runs_model(site.loss) else None
        yield Change.written(RULE, site.module, site.node, message, context.vocabulary.backward(site, variable))
