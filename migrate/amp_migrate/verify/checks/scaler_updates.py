"""The scale is updated once after the steps of an iteration, wherever optimizers step through a scaler.

A scaler that is never updated keeps its first scale: where that overflows every step is skipped, and where gradients
vanish it never grows. No number shows it before float16. ``torch.amp.GradScaler`` also wants no step between an update
and the next backward call: that step's gradients are divided by another scale than they were multiplied by.

The runtime's ``amp.scaler`` does nothing in an update without a step, and may be updated after each of several
optimizers. A fixed scale needs no update. What the original does itself is left to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks.common import Traces, at, first_rank, lossy_runs
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O0, O0_TOGETHER, ORIGINAL, Asked
from amp_migrate.verify.traces import RankTrace, ScalerCall

ID = "scaler-updates"
TITLE = "The loss scale is updated after the steps of each iteration"


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Look at the order of steps and updates, in each run of the migrated script without a forced scale."""
    original = first_rank(traces, ORIGINAL)
    if original is None or original.scaler_calls:
        return
    names = [name for name, _ in lossy_runs(traces)] + [O0, O0_TOGETHER]
    runs = [(name, rank) for name in names if (rank := first_rank(traces, name)) is not None and rank.scaler_calls]
    counts = []
    for name, rank in runs:
        for scaler in sorted({call.scaler for call in rank.scaler_calls}):
            calls = [call for call in rank.scaler_calls if call.scaler == scaler]
            if any(call.fixed for call in calls):
                continue
            if wrong := _wrong(calls, rank):
                yield Check(ID, TITLE, "disproved", f"In the run at {name} {wrong}")
                return
            counts.append((sum(call.call == "update" for call in calls), len(_iterations(calls))))
    if counts:
        updates, iterations = counts[0]
        message = f"{plural(updates, 'update')} follow the steps of {plural(iterations, 'iteration')}."
        yield Check(ID, TITLE, "proved", message)


def _wrong(calls: Sequence[ScalerCall], rank: RankTrace) -> str:
    iterations = _iterations(calls)
    left_out = [step for step, following in pairwise(iterations) if not _updated(calls, step, following)]
    if left_out:
        where = at(rank.backwards[max(0, left_out[0].after - 1)])
        return (
            f"the scaler is not updated after {len(left_out)} of {len(iterations) - 1} iterations with a step, first "
            f"after {where}. Call scaler.update() once after the optimizers' steps."
        )
    late = [two for one, two in pairwise(calls) if one.call == "update" and two.call == "step"]
    late = [call for call in late if call.kind == "torch" and _same_backward(calls, call)]
    if late:
        where = at(rank.backwards[max(0, late[0].after - 1)])
        return (
            f"an optimizer steps after the scaler was updated and before another backward call ({where}), so that its "
            "gradients are divided by another scale. Update once, after all steps."
        )
    return ""


def _iterations(calls: Sequence[ScalerCall]) -> list[ScalerCall]:
    """The first step after each backward call that has any."""
    found: dict[int, ScalerCall] = {}
    for call in calls:
        if call.call == "step":
            found.setdefault(call.after, call)
    return list(found.values())


def _updated(calls: Sequence[ScalerCall], step: ScalerCall, following: ScalerCall) -> bool:
    """Whether there is an update between two iterations."""
    first, second = calls.index(step), len(calls) - 1 - calls[::-1].index(following)
    return any(call.call == "update" for call in calls[first:second])


def _same_backward(calls: Sequence[ScalerCall], step: ScalerCall) -> bool:
    """Whether the update before a step came after the same backward call."""
    return any(call.call == "update" and call.after == step.after for call in calls[: calls.index(step)])
