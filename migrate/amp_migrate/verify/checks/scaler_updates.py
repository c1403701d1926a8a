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
            counts.append((sum(call.steps is None for call in calls), sum(call.steps is not None for call in calls)))
    if counts:
        updates, steps = counts[0]
        message = (
            f"{plural(steps, 'step')} through the scaler and {plural(updates, 'update')}: no optimizer steps twice "
            "without one between."
        )
        yield Check(ID, TITLE, "proved", message)


def _wrong(calls: Sequence[ScalerCall], rank: RankTrace) -> str:
    left_out = list(_left_out(calls))
    if left_out:
        steps = sum(call.steps is not None for call in calls)
        return (
            f"the scale is not updated between {len(left_out)} of {steps} steps and the optimizer's next one, first "
            f"after {_where(left_out[0], rank)}. Call scaler.update() once after the optimizers' steps."
        )
    late = [two for one, two in pairwise(calls) if one.steps is None and two.steps is not None]
    late = [call for call in late if call.kind == "torch" and _same_backward(calls, call)]
    if late:
        return (
            "an optimizer steps after the scale was updated and before another backward call "
            f"({_where(late[0], rank)}), so that its gradients are divided by another scale. Update once, after all "
            "steps."
        )
    return ""


def _where(call: ScalerCall, rank: RankTrace) -> str:
    return at(rank.backwards[max(0, call.after - 1)])


def _left_out(calls: Sequence[ScalerCall]) -> Iterator[ScalerCall]:
    """The steps after which the same optimizer steps on other gradients with no update between."""
    pending: dict[int, ScalerCall] = {}
    for call in calls:
        if call.steps is None:
            pending.clear()
            continue
        before = pending.get(call.steps)
        if before is not None and before.after < call.after:
            yield before
        pending[call.steps] = call


def _same_backward(calls: Sequence[ScalerCall], step: ScalerCall) -> bool:
    """Whether the update before a step came after the same backward call."""
    return any(call.steps is None and call.after == step.after for call in calls[: calls.index(step)])
