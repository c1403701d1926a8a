"""The original, run twice, computes the same both times.

Whatever is compared to the last bit rests on this, so it comes first. A script that seeds itself from the time, whose
threads race, or that orders something by its address differs from itself, and then nothing that demands equal bits
can be disproved of its migration: those checks stay open. The second run may end earlier than the first; as far as it
goes losses, steps and gradient norms have to be the same, and at its end, where that is the end of both, parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks.common import Traces, as_far, first_rank
from amp_migrate.verify.checks.differences import Difference, first_difference
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import ORIGINAL, ORIGINAL_AGAIN, Asked

ID = "repeats"
TITLE = "The original is reproducible"

_SEED = "Seed everything that it draws from, and keep times and set orders out of the training; then verify again."


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the original with its second run."""
    again = traces.get(ORIGINAL_AGAIN)
    if again is None:
        return
    if not again.usable:
        yield Check(ID, TITLE, "unproved", _UNKNOWN)
        return
    found = _difference(traces)
    if found is None:
        steps = plural(len(again.ranks[0].backwards), "backward call")
        message = f"Run twice, all its losses and gradient norms are the same to the last bit over {steps}."
        yield Check(ID, TITLE, "proved", message)
        return
    message = (
        f"In a second run, {found.words}. So no other run can be compared with it bit for bit, and an unequal "
        f"number below does not by itself show that the migration is wrong. {_SEED}"
    )
    yield Check(ID, TITLE, "unproved", message)


_UNKNOWN = "It is not known whether the original is reproducible, because its second run failed."


def unrepeatable(traces: Traces) -> str:
    """Why the original cannot be compared with to the last bit, as a sentence; empty if it repeats itself."""
    if first_rank(traces, ORIGINAL) is None or first_rank(traces, ORIGINAL_AGAIN) is None:
        return _UNKNOWN
    found = _difference(traces)
    return f"But the original is not reproducible either: in a second run, {found.words}. {_SEED}" if found else ""


def _difference(traces: Traces) -> Difference | None:
    original, again = as_far(traces, ORIGINAL, ORIGINAL_AGAIN)
    if original is None or again is None:
        return None
    return first_difference(original, again, "the first run")
