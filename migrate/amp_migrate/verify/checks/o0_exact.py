"""At O0 the migrated script repeats the original bit for bit.

Losses, the number and the order of the optimizers' steps, the norm of the gradients that each of them saw, and the
bytes of all parameters at the end are those of the original. Nothing may differ in a single bit: at O0 the migrated
script draws the same random numbers and computes the same operations in the same order.

The original is run twice for this. If it is not reproducible, nothing can be said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks.another_training import another_training
from amp_migrate.verify.checks.common import Traces, as_far, computes_in_half, first_rank
from amp_migrate.verify.checks.differences import Difference, first_difference
from amp_migrate.verify.checks.repeats import unrepeatable
from amp_migrate.verify.evidence import Check, Verdict
from amp_migrate.verify.plan import O0, ORIGINAL, Asked

ID = "o0-exact"
TITLE = "O0 reproduces the original bit for bit"

_WHAT_TO_DO = {
    "loss": "look for random numbers that are drawn earlier or more often, for changed arguments, and for a loss "
    "that is divided or multiplied besides",
    "updates": "look for an optimizer or scaler step that was added, left out or moved",
    "norm": "look for gradients that are not cleared, or that are scaled or clipped in another place",
    "steps": "look for a loop that is left earlier or later",
    "parameters": "look at the optimizer's class and options, and at the last step",
}


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the original with the migrated script at O0."""
    original, migrated = as_far(traces, ORIGINAL, O0)
    if original is None or migrated is None:
        return
    difference = first_difference(original, migrated)
    if difference is None:
        counts = (
            f"{plural(len(original.backwards), 'backward call')} and {plural(len(original.updates), 'optimizer step')}"
        )
        message = f"Over {counts} all losses, gradient norms and parameters are the same to the last bit."
        yield Check(ID, TITLE, "proved", message)
        return
    verdict, reason = _verdict(traces, difference, asked)
    yield Check(ID, TITLE, verdict, f"{difference.words[0].upper()}{difference.words[1:]}. {reason}")


def _without_levels(traces: Traces, asked: Asked) -> str:
    """That a version that was given knows no O0, as a sentence; empty if it does, or computed nothing in half."""
    original, migrated = first_rank(traces, ORIGINAL), first_rank(traces, O0)
    if original is None or migrated is None or "amp" in migrated.events or asked.target == "torch":
        return ""
    if computes_in_half(original) or not computes_in_half(migrated):
        return ""
    return (
        "But it computes in half at O0 too, as a script does that uses torch.amp itself and not the runtime, so it has "
        "no run in float32 to compare with. Turn autocast off in it to see whether anything else differs."
    )


def _verdict(traces: Traces, difference: Difference, asked: Asked) -> tuple[Verdict, str]:
    reason = another_training(traces) or _without_levels(traces, asked) or unrepeatable(traces)
    if reason:
        return "unproved", reason
    hint = _WHAT_TO_DO[difference.kind]
    return "disproved", f"The original is reproducible.{_factor(difference)} Before that, {hint}."


def _factor(difference: Difference) -> str:
    """The simple factor between the two numbers, if there is one: a loss that is divided twice has it."""
    if difference.kind not in ("loss", "norm"):
        return ""
    for factor in (difference.ratio, 1 / difference.ratio if difference.ratio else 0.0):
        if 1.5 < factor < 1e6 and math.isclose(factor, round(factor), rel_tol=1e-5):
            word = "times as large" if factor == difference.ratio else "times smaller"
            return f" It is {round(factor)} {word}."
    return ""
