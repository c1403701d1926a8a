"""The int8 model that the script makes is near the float model that it is made of, and making it changes no training.

The script runs to its end at O0. Whenever it calls its int8 model, the float model is called with the same inputs (for
``qat`` the one that trained, which rounds), and the distance is the root mean square of the difference of all outputs
over that of the float model's outputs. What rounding does by itself stays below ``NEAR``, and what is wrong lies above
``FAR``; between them it is open. ``docs/verify.md`` has the numbers that were measured on both sides.

With ``dynamic`` and ``static`` the training of that run is compared with O0's bit for bit: the lines come behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks import runs
from amp_migrate.verify.checks.common import Traces, as_far, percent
from amp_migrate.verify.checks.differences import first_difference
from amp_migrate.verify.checks.repeats import unrepeatable
from amp_migrate.verify.evidence import Check, Verdict
from amp_migrate.verify.plan import INT8, O0, Asked
from amp_migrate.verify.traces import Int8, Trace

ID = "int8"
TITLE = "The int8 model is near the float model"
TRAINING_ID = "int8-training"
_TRAINING_TITLE = "Making the int8 model changes no training"

NEAR = 0.1
"""What rounding to int8 does by itself stays below."""
FAR = 0.5
"""A model of other weights, or one that was calibrated with other data, lies above."""

_NO_TORCHAO = re.compile(r"amp\.quantize needs torchao")
_SHORTER = (
    "It runs to its own end, whatever --steps says: give the script's own arguments after -- so that its training is "
    "short, or allow more with --timeout."
)


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Judge the run that makes int8 models."""
    trace = traces.get(INT8)
    if trace is None:
        return
    if not trace.usable:
        verdict, message = _failed(trace, traces)
        yield Check(ID, TITLE, verdict, message)
        return
    made = trace.ranks[0].int8
    if not made:
        yield Check(ID, TITLE, "unproved", "The script ended and had made no int8 model with these arguments.")
        return
    yield _nearness(made)
    if all(one.kind != "qat" for one in made):
        yield from _training(traces)


def _failed(trace: Trace, traces: Traces) -> tuple[Verdict, str]:
    sentence = f"The run failed: {runs.reason(trace)}."
    if _NO_TORCHAO.search(sentence):
        return "unproved", f"{sentence} Then verify again."
    if trace.status == "timeout":
        return "unproved", f"It had not come to its end when its time was up. {_SHORTER}"
    if trace.status == "memory":
        return "unproved", f"{sentence} What makes a model int8 takes more than training: allow it more with --memory."
    verdict, why = runs.judged(trace, traces)
    return verdict, f"{sentence} {why}"


def _nearness(made: Sequence[Int8]) -> Check:
    """The worst of what was made, with its numbers."""
    found = [_judged(one) for one in made]
    order: tuple[Verdict, ...] = ("disproved", "unproved", "proved")
    worst = min(order.index(verdict) for verdict, _ in found)
    bad = [(verdict, message) for verdict, message in found if order.index(verdict) == worst]
    if order[worst] == "proved":
        farthest = max(range(len(made)), key=lambda number: made[number].apart)
        return Check(ID, TITLE, "proved", found[farthest][1])
    return Check(ID, TITLE, *bad[0])


def _judged(made: Int8) -> tuple[Verdict, str]:
    where = f" (in the migrated version {made.site})" if made.site else ""
    which = f"the {made.kind} model{where}"
    if made.unlike:
        return "disproved", f"{_sentence(which)} gives outputs of other shapes than the float model: {made.unlike}."
    if not made.finite:
        return "disproved", f"{_sentence(which)} gives numbers that are not finite where those of the float model are."
    if made.error:
        reason = f"the float model cannot be called with the same inputs ({made.error})"
        return "unproved", f"How near {which} is was not measured: {reason}."
    if not made.tensors:
        reason = "the script does not call it" if not made.called else "its outputs hold no tensors of floats"
        return "unproved", f"How near {which} is was not measured: {reason}. Evaluate it behind the training."
    distance = _distance(made, which)
    if made.apart > FAR:
        hint = (
            "The float model was given other weights after it was quantized: quantize it when it has those."
            if made.loaded
            else "Look for a calibration with other data than the model is given, and for another model."
        )
        return "disproved", f"{distance}, and no more than {percent(NEAR)} is what rounding does. {hint}"
    if made.loaded:
        return "unproved", (
            f"{distance}. But the float model was given other weights after it was quantized: quantize it when it has "
            "those."
        )
    if made.apart > NEAR:
        return "unproved", (
            f"{distance}: more than rounding does to most models ({percent(NEAR)}), and less than what is wrong "
            f"({percent(FAR)}). Compare what the script prints of both; the calibration may need more batches."
        )
    if not made.known:
        return "unproved", f"{distance}. But that model was neither trained by the script, nor loaded, nor copied."
    return "proved", f"{distance}; up to {percent(NEAR)} is what rounding does."


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"


def _distance(made: Int8, which: str) -> str:
    float_model = "the model that trained with rounding" if made.kind == "qat" else "the float model"
    calls = f"over {plural(made.calls, 'call')} with the same inputs"
    if not made.called:
        calls += ", which the script does not make itself,"
    return f"{_sentence(calls)} the outputs of {which} differ by {percent(made.apart)} from those of {float_model}"


def _training(traces: Traces) -> Iterator[Check]:
    """Compare the training of the run with that at O0."""
    right, other = as_far(traces, O0, INT8)
    if right is None or other is None:
        return
    difference = first_difference(right, other, "O0")
    if difference is None:
        message = f"Over {plural(len(right.backwards), 'backward call')} it is O0's to the last bit"
        at_end = " and so are the parameters at the end" if right.parameters and other.parameters else ""
        yield Check(TRAINING_ID, _TRAINING_TITLE, "proved", f"{message}{',' if at_end else ''}{at_end}.")
        return
    reason = unrepeatable(traces)
    hint = reason or "Make the int8 model behind all training, of a model that goes on as it was."
    verdict: Verdict = "unproved" if reason else "disproved"
    yield Check(TRAINING_ID, _TRAINING_TITLE, verdict, f"{_sentence(difference.words)}. {hint}")
