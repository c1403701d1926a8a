"""Unscale gradients before anything reads them.

## What it does
Inserts `amp.scaler.unscale_(optimizer)` before clipping, and before any other code that reads or changes
gradients which a backward pass left scaled: `p.grad`, `getattr(p, "grad")`, functions that clip. The optimizer is the
one that holds these very gradients. The next backward pass scales them again.

Adversarial training such as FGM and PGD moves weights by `epsilon * p.grad / norm`. That does not depend on the
scale, so it stays as it is. Its condition `not torch.isnan(norm)` becomes `torch.isfinite(norm)`: if scaled gradients
overflow, their norm is infinite, which is no NaN, and the weights would be NaN for one pass.

Gradients that a script sums over its processes by hand, without `DistributedDataParallel`, are unscaled after the
sum. The sum carries an infinity to all processes, so all skip the same steps.

## Why
Until the step, gradients are multiplied by the scale. A norm of 1.0 would be a norm of 65536, and clipping
at 1.0 would make every step tiny.

## Before
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

## After
    amp.scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    amp.scaler.step(optimizer)

## When it declines
When no optimizer holds the gradients, when it cannot be named there, when the script changes weights by their
gradients itself, or clips them before it sums them over its processes by hand (AMP195).

## Leaving it out
No: clipping would cut scaled gradients to almost nothing.

## Source
https://pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import anomaly_detection, gradient_histograms, kept_gradient_norms, mended_gradients
from amp_rules.plan.context import Change, Context
from amp_rules.plan.options import HALVED
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.source.resolver import names_of
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import substitute, widened

RULE = Rule("AMP105", "unscale-before-use", "Gradients are unscaled before they are read.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield an insertion for each first look at the gradients of a step."""
    for item in context.precision.unscales:
        message = f"`{item.what}` gets true gradients, not scaled ones"
        written = context.vocabulary.unscale(item.module, item.statement, item.optimizers)
        yield Change.written(RULE, item.module, item.statement, message, written)
    yield from _directions(context)


def _directions(context: Context) -> Iterator[Change]:
    """Yield what keeps gradients that overflowed from moving weights, and their norm within half's range."""
    for item in context.precision.perturbations:
        module, guard = item.module, item.guard
        message = f"`{item.norm}` of gradients that overflow is infinite: they move no weights then"
        if item.nan_test is not None:
            test = item.nan_test.operand
            assert isinstance(test, ast.Call)
            code = module.text(test)
            function = module.text(test.func)
            code = function.removesuffix("isnan") + "isfinite" + code[len(function) :]
            yield Change(RULE, module, item.nan_test, message, (Replace(item.nan_test, substitute(code)),))
        elif not item.is_finite:
            torch = names_of(module).name_of("torch")
            code = f"{module.text(guard.test)} and {torch}.isfinite({item.norm})"
            yield Change(RULE, module, guard.test, message, (Replace(guard.test, substitute(code)),))
        if context.options.opt_level in HALVED:
            message = f"the norm of `{module.text(item.measured)}` may be larger than what half holds"
            yield Change(RULE, module, item.measured, message, (Replace(item.measured, widened),))


def notes(context: Context) -> Iterator[Note]:
    """Yield what looks at gradients and breaks where they overflowed."""
    yield from anomaly_detection.notes(context.program)
    yield from gradient_histograms.notes(context.program, is_shared=context.distribution is not None)
    yield from kept_gradient_norms.notes(context.program)
    yield from mended_gradients.notes(context.program, context.precision.unscales)
