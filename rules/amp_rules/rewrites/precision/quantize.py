"""Make the trained model int8, and evaluate it beside the float one.

## What it does
With `--quantize dynamic` or `--quantize static`, lines come behind the training: `amp.quantize` makes an int8 copy of
the trained model, for `static` with ranges of batches from the training loader; the script's own evaluation runs with
the float model and with the copy; `amp.save_quantized` writes the copy beside the script's own checkpoint. Where the
script loads its best checkpoint behind the training, evaluates or writes files there, the lines come below that.

## Why
Int8 weights take a quarter of the size. What that costs in accuracy shows only where both models are evaluated alike.
All of it happens when the training has ended, so no loss changes.

## Before
    for epoch in range(epochs):
        train(model, train_loader, optimizer)
        print(evaluate(model, test_loader))

## After
    for epoch in range(epochs):
        train(model, train_loader, optimizer)
        print(evaluate(model, test_loader))
    print("float32:", evaluate(model, test_loader))
    quantized = amp.quantize(model, "static", calibration=train_loader)
    print("int8:", evaluate(quantized, test_loader))
    amp.save_quantized(quantized, "model_int8.pt")

## When it declines
Where there is no evaluation that can be called again, the place where the training ends is not certain, or what the
model is given of a batch is not known. The script is migrated without, and a note says why (AMP181).

## Leaving it out
Yes: the script then trains and ends as before.

## Source
https://docs.pytorch.org/ao/stable/pt2e_quantization/pt2e_quant_ptq.html
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.notes import NOT_QUANTIZED, note
from amp_rules.plan.quantizing.found import Quantized, find
from amp_rules.plan.quantizing.why_not import NotQuantized
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.plan.selection import wants
from amp_rules.text.actions import Insert

RULE = Rule("AMP119", "quantize", "The trained model is made int8.", "precision", optional=True, shared=True)


def changes(context: Context) -> Iterator[Change]:
    """Yield the lines behind the training."""
    if not _is_asked(context):
        return
    try:
        found = _found(context)
    except NotQuantized:
        return
    words = context.vocabulary
    module = found.module
    made = words.quantized(module, found.model, found.kind, found.calibration, found.inputs)
    lines = [] if found.before is None else [_shown("float32:", found.before, found)]
    lines += [
        f"{found.name} = {made}",
        _shown("int8:", found.after, found),
        words.quantized_saved(module, found.name, found.path),
    ]
    message = f"`{found.model}` is trained: it is made int8 and evaluated beside float32"
    insert = Insert(found.statement, "\n".join(lines), after=True, order=1)
    yield Change(RULE, module, found.statement, message, [insert], needs_import=True)


def notes(context: Context) -> Iterator[Note]:
    """Yield why nothing is quantized."""
    if not _is_asked(context):
        return
    try:
        _found(context)
    except NotQuantized as declined:
        what = f"{declined.text}; {declined.recipe}" if declined.recipe else declined.text
        yield note(NOT_QUANTIZED, declined.module, declined.node, f"no int8 model: {what}")


def _is_asked(context: Context) -> bool:
    return context.options.quantize is not None and wants(context.options, RULE.code, shared=True)


def _found(context: Context) -> Quantized:
    """What is added.

    Raises:
        NotQuantized: nothing can be.
    """
    assert context.options.quantize is not None
    if context.initialised:
        raise NotQuantized(context.program.entry, None, "`amp.initialize` prepares the model in its own place")
    return find(context.program, context.options.quantize, context.precision.homes)


def _shown(what: str, evaluation: str, found: Quantized) -> str:
    return f'print("{what}", {evaluation})' if found.gives else evaluation
