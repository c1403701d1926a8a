"""Keep what `torch.autograd.grad` or a finite difference differentiates in FP32.

## What it does
Wraps the statements from the model's call to `torch.autograd.grad` in `with amp.autocast(enabled=False):`, or to the
call of a function that is given the outputs and takes derivatives of them, or of a part such as `u = fields[..., 0]`.

So it does with two runs of a model whose inputs are a small step apart, and whose outputs are subtracted:
`(model(x + step) - model(x)) / step`. In a function that a region calls, what is given may be half: that function gets
`@amp.float_function`. A step counts as small where the difference is divided, where the runs stand under
`torch.no_grad()`, so that their difference stands in for a gradient, or where it is scaled by 0.01 or less.

And so it does with a model whose output on a grid is differentiated by differences of neighbours that are divided by a
step, as in the residual of a differential equation: `(u[2:] - 2 * u[1:-1] + u[:-2]) / h**2`, and
`F.conv2d(u, laplacian) / h**2`. Differences that nothing divides stay in half.

## Why
These gradients (a gradient penalty, the inner steps of meta-learning) are not scaled, so in fp16 they would
vanish; and their squares, which a penalty sums, overflow early. Half rounds inputs and outputs by more than a small
step changes them: their difference would be noise.

## Before
    scores = critic(mixed)
    gradients = torch.autograd.grad(scores.sum(), mixed, create_graph=True)[0]

## After
    with amp.autocast(enabled=False):
        scores = critic(mixed)
        gradients = torch.autograd.grad(scores.sum(), mixed, create_graph=True)[0]

## When it declines
Never; code outside of any region runs in FP32 anyway. A difference whose two runs are not seen to be of one model,
at inputs that differ by an addend, stays as it is.

## Leaving it out
No: the gradients inside vanish or overflow in half, and a finite difference is noise, without an error.

## Source
https://pytorch.org/docs/stable/notes/amp_examples.html#gradient-penalty
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.rule import Rule

RULE = Rule("AMP107", "autograd-grad-in-fp32", "What torch.autograd.grad differentiates stays in FP32.", "precision")

_DIFFERENCE = "half rounds outputs by more than the step changes them whose difference is taken"


def changes(context: Context) -> Iterator[Change]:
    """Yield a block for each run that feeds ``torch.autograd.grad``, and one for what a difference is taken of."""
    for run in context.precision.full_precision:
        message = "gradients from `torch.autograd.grad` are not scaled, so what they come from stays in FP32"
        written = context.vocabulary.without_autocast(run.module, run.first, run.last)
        yield Change.written(RULE, run.module, run.first, message, written)
    differences = context.precision.differences
    for run in differences.runs:
        written = context.vocabulary.without_autocast(run.module, run.first, run.last)
        yield Change.written(RULE, run.module, run.first, _DIFFERENCE, written)
    for info in differences.functions:
        module, node = info.module.module, info.node
        assert isinstance(node, ast.FunctionDef)
        written = context.vocabulary.decorated_in_float32(module, node)
        yield Change.written(RULE, module, node, f"`{info.name}` runs in FP32: {_DIFFERENCE}", written)
