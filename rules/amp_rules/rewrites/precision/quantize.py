"""Make the trained model int8, and evaluate it beside the float one.

## What it does
With `--quantize dynamic` or `--quantize static`, lines come behind the training: `amp.quantize` makes an int8 copy of
the trained model, for `static` with ranges of batches from the training loader; the script's own evaluation runs with
the float model and with the copy; `amp.save_quantized` writes the copy beside the script's own checkpoint. Where the
script loads its best checkpoint behind the training, evaluates or writes files there, the lines come below that. Where
its evaluation cannot be called once more, the copy is made and saved, and a note says what to run (AMP181).

With `--quantize qat` the model trains for int8: `model = amp.quantize(model, "qat", calibration=train_loader)` stands
above the line that prepares it, and above its optimizer; the ranges are frozen where the last epoch begins; and
`amp.convert_quantized(model)` stands behind the training. The losses are then those of a model whose weights and values
are rounded, at every level.

`amp.init(quantize="static")` has a machine without torchao stop the script where it starts.

## Why
Int8 weights take a quarter of the size. What that costs in accuracy shows only where both models are evaluated alike.
With `dynamic` and `static` all of it happens when the training has ended, so no loss changes.

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
Where nothing evaluates the model, the place where the training ends is not certain, or what the model is given of a
batch is not known; with `qat` also where the script asks the model for something that an exported graph does not have.
The script is migrated without, and a note says why (AMP181).

## Leaving it out
Yes: the script then trains and ends as before.

## Source
https://docs.pytorch.org/ao/stable/pt2e_quantization/pt2e_quant_ptq.html,
https://docs.pytorch.org/ao/stable/pt2e_quantization/pt2e_quant_qat.html
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan.context import QUANTIZE, Change, Context
from amp_rules.plan.notes import NOT_QUANTIZED, note
from amp_rules.plan.quantizing.found import Quantized
from amp_rules.plan.quantizing.training_for_it import TrainingStart
from amp_rules.plan.quantizing.why_not import NotQuantized
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.text.actions import Insert

RULE = Rule(
    QUANTIZE, "quantize", "The trained model is made int8.", "precision", optional=True, together=True, shared=True
)


def changes(context: Context) -> Iterator[Change]:
    """Yield the lines behind the training, and for training for int8 those before it."""
    found = context.quantized
    if not isinstance(found, Quantized):
        return
    if found.start is not None:
        yield from _before(context, found.start)
    lines = [] if found.before is None else [_shown(_FLOAT[found.kind], found.before, found)]
    lines.append(f"{found.name} = {_made(context, found)}")
    if found.after is not None:
        lines.append(_shown("int8:", found.after, found))
    lines.append(context.vocabulary.quantized_saved(found.module, found.name, found.path))
    message = f"`{found.model}` is trained: it is made int8"
    message += " and evaluated beside float32" if found.after is not None else ""
    insert = Insert(found.statement, "\n".join(lines), after=True, order=1)
    yield Change(RULE, found.module, found.statement, message, [insert], needs_import=True)


def notes(context: Context) -> Iterator[Note]:
    """Yield why nothing is quantized, or what is to be known where something is."""
    found = context.quantized
    if isinstance(found, NotQuantized):
        yield note(NOT_QUANTIZED, found.module, found.node, f"no int8 model: {found.told}")
    elif found is not None:
        for remark in found.remarks:
            yield note(NOT_QUANTIZED, remark.module, remark.node, remark.text)


_FLOAT = {"dynamic": "float32:", "static": "float32:", "qat": "fake-quantized:"}
"""What the model is called that was trained; for the last kind it rounds already."""


def _before(context: Context, start: TrainingStart) -> Iterator[Change]:
    home, words = start.home, context.vocabulary
    made = words.quantized(home.module, home.variable, "qat", start.calibration, start.inputs)
    # Above the line that prepares it, where that is at the same place.
    insert = Insert(start.statement, f"{home.variable} = {made}", after=True, order=-1)
    message = f"`{home.variable}` trains with the rounding of int8, and its losses are others than before"
    yield Change(RULE, home.module, start.statement, message, [insert], needs_import=True)
    last = start.freezing
    if last is not None:
        frozen = Insert(last.statement, f"if {last.condition}:\n    {words.ranges_frozen(last.module, last.model)}")
        message = "the ranges stay as they are in the last epoch, so that the weights settle in them"
        yield Change(RULE, last.module, last.statement, message, [frozen], needs_import=True)


def _made(context: Context, found: Quantized) -> str:
    words = context.vocabulary
    if found.start is not None:
        return words.quantized_from_training(found.module, found.model)
    return words.quantized(found.module, found.model, found.kind, found.calibration, found.inputs)


def _shown(what: str, evaluation: str, found: Quantized) -> str:
    return f'print("{what}", {evaluation})' if found.gives else evaluation
