"""What will be launched: O1 in several processes does what O0 does in them, but for rounding.

The mean of the processes' losses stays near that of the same processes at O0, by the rule by which O1 in one process
stays near the original. And where the processes hold the same parameters at O0, they do so at O1, after equally many
backward calls and steps, of which a scaler has skipped the same ones on all of them: a process that steps where
another one skips trains another model from there on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks.band import Near, own_distance, stays_near
from amp_migrate.verify.checks.common import Traces, first_rank, together
from amp_migrate.verify.checks.reference import reference
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O0_TOGETHER, O1_TOGETHER, ORIGINAL, Asked
from amp_migrate.verify.traces import Backward, RankTrace, Trace

ID = "o1-together"


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the processes at O1 with each other, and with those at O0."""
    trace, original = traces.get(O1_TOGETHER), first_rank(traces, ORIGINAL)
    full, half = together(traces), together(traces, O1_TOGETHER)
    if trace is None or original is None or not full:
        return
    title = f"O1 in {trace.processes} processes stays near O0 in them"
    if not half:
        if trace.usable:
            message = "The processes communicate at O0, and not at O1."
            yield Check(ID, title, "disproved", message)
        return
    if apart := _apart(full, half):
        yield Check(ID, title, "disproved", apart)
        return
    name = "the processes at O0"
    near = Near(
        _mean_steps(traces[O0_TOGETHER]),
        name,
        reference(traces, trace),
        original,
        asked.tolerance,
        own_distance(traces),
        processes=len(half),
    )
    verdict, message = stays_near(near, _mean_steps(trace), max(rank.skipped for rank in half))
    yield Check(ID, title, verdict, message)


def _mean_steps(trace: Trace) -> list[Backward]:
    """The backward calls of the first process with the mean of all losses."""
    steps = trace.ranks[0].backwards
    return [replace(step, loss=loss) for step, loss in zip(steps, trace.losses, strict=False)]


def _apart(full: Sequence[RankTrace], half: Sequence[RankTrace]) -> str:
    """What the processes at O1 do differently that they do alike at O0, as sentences; empty if nothing."""
    found = {
        "backward calls": [[len(rank.backwards) for rank in ranks] for ranks in (full, half)],
        "optimizer steps": [[len(rank.updates) for rank in ranks] for ranks in (full, half)],
    }
    for what, (before, after) in found.items():
        if len(set(before)) == 1 < len(set(after)):
            counts = ", ".join(f"rank {rank.rank}: {count}" for rank, count in zip(half, after, strict=True))
            return f"At O1 the processes make different numbers of {what} ({counts}); at O0 they do not."
    skipped = sorted({rank.skipped for rank in half})
    if len(skipped) > 1:
        words = f"{skipped[0]} to {plural(skipped[-1], 'step')}"
        return f"At O1 the processes skip different numbers of steps ({words}): they do not agree on what overflowed."
    if len({rank.parameters for rank in full}) == 1 < len({rank.parameters for rank in half}):
        return (
            "At O1 the processes hold different parameters at the end, at O0 the same. Step with "
            "amp.scaler.step(optimizer) on all of them, on gradients that are averaged."
        )
    return ""
