"""Run binary cross entropy on probabilities in FP32.

## What it does
`nn.BCELoss()` becomes `amp.float_function(nn.BCELoss())`, and a call of `F.binary_cross_entropy` likewise:
inputs are cast to FP32 and autocast is off inside.

A sigmoid at the end of a model is kept in FP32 too where such a loss or a logarithm takes its output.

## Why
On CUDA, autocast refuses binary cross entropy on probabilities with an error; in half, a probability of
0.9999 is 1.0 and its logarithm infinite.

## Before
    criterion = nn.BCELoss()

## After
    criterion = amp.float_function(nn.BCELoss())

## When it declines
Never. `BCEWithLogitsLoss` without the sigmoid would be better still, but its losses differ from the
original's in the last bits, and at O0 a migrated script gives exactly the losses of the original.

## Leaving it out
No: autocast refuses the loss on CUDA with an error. Write it with logits by hand first.

## Source
https://pytorch.org/docs/stable/amp.html#prefer-binary-cross-entropy-with-logits-over-binary-cross-entropy
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.context import Change, Context
from amp_rules.rewrite import Replace, call_with
from amp_rules.rule import Rule

RULE = Rule("AMP106", "probability-loss", "Binary cross entropy on probabilities runs in FP32.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each constructor and each call of the function."""
    for site in context.precision.probability_losses:
        assert isinstance(site.node, ast.Call)
        text = site.module.text(site.node.func)
        message = (
            f"`{text}` of probabilities runs in FP32: autocast refuses it on CUDA; with logits it would be safe in half"
        )
        edit = call_with(context.code(site.module, "{amp}.float_function"))
        last = text.rpartition(".")[2]
        node: ast.expr = site.node if last[:1].isupper() else site.node.func
        yield Change(RULE, site.module, site.node, message, [Replace(node, edit)])
    for site in context.precision.probabilities:
        assert isinstance(site.node, ast.Call)
        text = site.module.text(site.node.func)
        message = f"`{text}` runs in FP32: in half a probability is 1.0 long before its logarithm is 0"
        edit = call_with(context.code(site.module, "{amp}.float_function"))
        node = site.node if text.rpartition(".")[2][:1].isupper() else site.node.func
        yield Change(RULE, site.module, site.node, message, [Replace(node, edit)])
