"""What several checks need: runs that can be judged, words for numbers and places."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from amp_migrate.verify.plan import O0_TOGETHER, ORIGINAL, ORIGINAL_TOGETHER, Asked
from amp_migrate.verify.traces import Backward, RankTrace, Trace

Traces = Mapping[str, Trace]
"""The runs that were made, by their names in :data:`amp_migrate.verify.plan.RUNS`."""

LOSSY = ("O1", "O2", "O3")
"""The levels that compute in half."""


def first_rank(traces: Traces, name: str) -> RankTrace | None:
    """What the first process of a run recorded; None if the run was not made or failed."""
    trace = traces.get(name)
    return trace.ranks[0] if trace is not None and trace.usable else None


def as_far(traces: Traces, first: str, second: str) -> tuple[RankTrace | None, RankTrace | None]:
    """What the first processes of two runs recorded, both as far as the one that was stopped earlier.

    A run that ended by itself is not cut, and the other is not cut to it: that is a difference.
    """
    one, other = first_rank(traces, first), first_rank(traces, second)
    if one is None or other is None:
        return one, other
    return cut_alike(traces[first], one, traces[second], other)


def cut_alike(
    first: Trace, first_rank: RankTrace, second: Trace, second_rank: RankTrace
) -> tuple[RankTrace, RankTrace]:
    """Two processes' traces, the one of the run that was allowed more steps cut to those of the other.

    Args:
        first: the run that the first trace is of.
        first_rank: one of its processes.
        second: the other run.
        second_rank: one of its processes.
    """
    counts = len(first_rank.backwards), len(second_rank.backwards)
    if first.status == "stopped" and counts[0] < counts[1]:
        return cut(first_rank, counts[0]), cut(second_rank, counts[0])
    if second.status == "stopped" and counts[1] < counts[0]:
        return cut(first_rank, counts[1]), cut(second_rank, counts[1])
    return first_rank, second_rank


def cut(rank: RankTrace, steps: int) -> RankTrace:
    """What a process had recorded when its backward call after so many began; nothing of what is noted at the end."""
    return replace(
        rank,
        backwards=rank.backwards[:steps],
        batches=tuple(batch for batch in rank.batches if batch.before <= steps),
        updates=tuple(update for update in rank.updates if update.after <= steps),
        parameters=(),
        buffers=(),
        rates=(),
        generators="",
    )


def together(traces: Traces, name: str = O0_TOGETHER) -> tuple[RankTrace, ...]:
    """The processes of a run in several; empty if it was not made, failed, or they do not talk.

    A script that was given as migrated may be without any distribution: started several times it is as many runs.
    """
    trace = traces.get(name)
    if trace is None or not trace.usable or len(trace.ranks) < 2:
        return ()
    return trace.ranks if talk(trace.ranks) else ()


def computes_in_half(rank: RankTrace) -> bool:
    """Whether products were computed in half, in the steps that were looked at."""
    return any(step.half for step in rank.backwards)


def talk(ranks: Sequence[RankTrace]) -> bool:
    """Whether processes made a group, or at least one of them did."""
    return any({"process_group", "ddp"} & set(rank.events) for rank in ranks)


def is_distributed_already(traces: Traces) -> bool:
    """Whether the original trains in several processes by itself, when it is started in one or in several."""
    found = (traces[name] for name in (ORIGINAL, ORIGINAL_TOGETHER) if name in traces)
    return any(trace.usable and talk(trace.ranks) for trace in found)


def is_compared_together(traces: Traces) -> bool:
    """Whether the original is written for several processes and was run in them.

    What it makes of its data and its learning rate there is its own, and all that matters is that it stays.
    """
    trace = traces.get(ORIGINAL_TOGETHER)
    return trace is not None and trace.usable and talk(trace.ranks)


def keeps_its_own(traces: Traces, asked: Asked) -> bool:
    """Whether what the script makes of several processes is its own, which the migration had only to leave alone."""
    return asked.distribution == "already" or is_compared_together(traces)


def lossy_runs(traces: Traces) -> Iterator[tuple[str, Trace]]:
    """The runs in one process at levels that compute in half, by name."""
    for name, trace in traces.items():
        if trace.level in LOSSY and trace.processes == 1 and trace.usable:
            yield name, trace


def site_numbers(steps: Sequence[Backward]) -> list[int]:
    """For each step which of the script's backward calls it is, counted in the order in which they first run.

    Migration moves lines, and this number stays.
    """
    numbers: dict[str, int] = {}
    return [numbers.setdefault(step.site, len(numbers)) for step in steps]


def at(step: Backward, migrated: Backward | None = None) -> str:
    """Where a step is: "train.py:48, in the migrated version train.py:51"."""
    if migrated is None or migrated.site in ("", step.site):
        return step.site or "the backward call"
    return f"{step.site}, in the migrated version {migrated.site}" if step.site else migrated.site


def pair(first: float, second: float) -> tuple[str, str]:
    """Two different numbers in words, with as many digits as it takes to tell them apart."""
    for digits in (6, 9, 12):
        one, two = f"{first:.{digits}g}", f"{second:.{digits}g}"
        if one != two:
            return one, two
    return repr(first), repr(second)


def percent(share: float) -> str:
    """A share in words: "0.83 %", "12 %"."""
    if 0 < share < 1e-4:
        return "less than 0.01 %"
    return f"{100 * share:.{3 if share >= 1 else 2}g} %"


def together_in_words(words: Sequence[str]) -> str:
    """Several things in a row: "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def relative(first: float, second: float) -> float:
    """How far apart two numbers are, by the larger of them; infinite if only one of them is finite."""
    if first == second or (math.isnan(first) and math.isnan(second)):
        return 0.0
    if not (math.isfinite(first) and math.isfinite(second)):
        return math.inf
    return abs(first - second) / max(abs(first), abs(second))
