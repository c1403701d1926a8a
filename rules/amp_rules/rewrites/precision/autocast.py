"""Put the forward pass and the loss under autocast.

## What it does
Wraps the statements that compute a loss, and those that evaluate a trained model, in `with
amp.autocast():`. The region ends before the backward pass, which runs in the types that autocast chose for
the forward pass. If the loss computes positions of pixels (matrix products of cameras, poses and grids), the region
ends earlier: after the calls of the models. So it does before a loss that multiplies matrices where the script keeps
Apex's O2, which computed it in FP32. An evaluation gets no region if the script never prepares the evaluated
model, or if it is run for what forward hooks take: its output is dropped, or the hooks are set beside it. If the call
that runs the backward pass also computes an argument, as in `update(model(x), y)`, that computation becomes a
statement of its own before the call. A loss by a method of an attribute of which nothing is known, as in
`self.rival.loss(y)`, has a region where it is given what a model gave: the object may hold a network.

An evaluation by another method of a model, or by a part of one, gets a region where it is known what it gives: nothing
in half, as a sampler that adds to a float32 image, or one tensor, which is made float32 again:
`model.encode(x).float()`. So does what a frozen network or such a method computes right above a region, if the region
alone reads it. A module of the project without weights that prepares data, a spectrum or an augmentation, stays in
front of the region. An `if` of which each branch evaluates gets one region. So do evaluations between which numbers
are only taken out, turned and flipped, or computed with element by element. The region of an evaluation goes on to the
loss over the same, if it is a module, a function of torch or one that the training takes its loss from.

## Why
Autocast chooses a type for each operation: matrix products in half, reductions and losses in FP32. The loss belongs
inside, because it is where half outputs would overflow first. A coordinate of 400 has steps of 2 in bfloat16; outside
of the region it is FP32, as the outputs of prepared models are. What a method of a model gives is not: a loss module
that an evaluation gives it gets a region, too.

## Before
    output = model(x)
    loss = criterion(output, y)

## After
    with amp.autocast():
        output = model(x)
        loss = criterion(output, y)

## When it declines
When the statements that compute a loss cannot be found (AMP194).

## Leaving it out
No: a training step without it would scale the loss and still compute in full precision. A comment `# amp: skip` may
keep an evaluation out at O0 and O1; it then runs in full precision.

## Source
https://pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import double_precision, frozen_features, nothing_lowered
from amp_rules.plan.context import Change, Context
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.source.resolver import free_name
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import widened
from amp_rules.text.vocabulary import LOSS_NAMES

_OUTPUT_NAMES = ("output", "outputs", "model_output", "computed")
RULE = Rule("AMP102", "autocast-region", "The forward pass and the loss run under autocast.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield a block for each run of statements."""
    training = {node for run in context.precision.training for item in run.statements() for node in walk(item)}
    for run in context.precision.runs:
        if run in context.precision.inline:
            continue  # its loss is taken out together with its backward pass
        what = run.module.text(run.first)
        message = f"`{what}` runs under autocast" if run.first is run.last else f"from `{what}` on, under autocast"
        written = context.vocabulary.autocast(run.module, run.first, run.last)
        evaluates = not any(node in training for item in run.statements() for node in walk(item))
        # Weights in FP32 evaluate without autocast too; half ones may meet inputs in FP32.
        optional = evaluates and context.options.opt_level in ("O0", "O1")
        yield Change.written(RULE, run.module, run.first, message, written, optional=optional)
    for site in context.precision.widened:
        assert isinstance(site.node, ast.expr)
        message = f"`{site.module.text(site.node)}` gives float32: nothing else makes a method's output so again"
        yield Change(RULE, site.module, site.node, message, (Replace(site.node, widened),), optional=True)
    for given in context.precision.given:
        what = given.module.text(given.argument)
        message = f"`{what}` runs under autocast, before the backward pass of `{given.module.text(given.call.func)}`"
        variable = free_name(given.module, LOSS_NAMES if given.is_loss else _OUTPUT_NAMES)
        written = context.vocabulary.autocast_argument(given.module, given.statement, given.argument, variable)
        yield Change.written(RULE, given.module, given.argument, message, written)


def notes(context: Context) -> Iterator[Note]:
    """Yield what makes a model float64, of which a region lowers nothing, and what stays outside of all regions."""
    yield from nothing_lowered.notes(context)
    if context.precision.runs:
        yield from double_precision.notes(context.program)
        yield from frozen_features.notes(context.program, context.precision)
