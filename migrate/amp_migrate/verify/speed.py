"""How fast the levels in half are beside the original, where the machine lets that be told.

The same step of two runs does the same work on the same data, so steps are compared in pairs, warm ones alone. What the
machine does besides slows now the one run and now the other: the runs in float32 before and between those in half do
the same work again, so that a speed is told against each of them, with a spread that holds them all. Where that is
larger than the difference, nothing is said. Nor is anything said on a processor that only emulates the type.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

from amp_migrate.verify.checks.common import LOSSY, Traces
from amp_migrate.verify.evidence import Speed
from amp_migrate.verify.plan import O0, ORIGINAL, ORIGINAL_AGAIN
from amp_migrate.verify.traces import Trace

_WARM, _LEAST, _BLOCKS = 3, 12, 40
_BESIDE = (ORIGINAL, ORIGINAL_AGAIN, O0)
# The median lies between these order statistics 19 times out of 20: so many roots of the count from the middle.
_SPREAD = 0.98


def speeds(traces: Traces) -> tuple[Speed, ...]:
    """Those that may be said."""
    found = (_speed(traces, traces[level]) for level in LOSSY if level in traces)
    return tuple(speed for speed in found if speed is not None)


def notes(traces: Traces) -> Iterator[str]:
    """That this machine tells nothing of speed, where that is so."""
    runs = [traces[level] for level in LOSSY if level in traces and traces[level].usable]
    if any(trace.ranks[0].device == "cpu" and not _computes_in(trace) for trace in runs):
        yield "This processor only emulates half precision, so its times say nothing of a GPU's."


def _speed(traces: Traces, trace: Trace) -> Speed | None:
    if not trace.usable or trace.processes > 1 or not _computes_in(trace):
        return None
    references = [traces[name] for name in _BESIDE if name in traces and traces[name].usable]
    if len(references) < len(_BESIDE):
        return None
    ratios = [_ratios(reference, trace) for reference in references]
    if min(map(len, ratios)) < _LEAST:
        return None
    spreads = [_spread(pairs) for pairs in ratios]
    low, high = min(low for low, _ in spreads), max(high for _, high in spreads)
    factor = statistics.median(ratios[0])
    if low <= 1 <= high or high - low > abs(factor - 1):
        return None
    return Speed(trace.name, ORIGINAL, factor, low, high, len(ratios[0]))


def _computes_in(trace: Trace) -> bool:
    return trace.half_type in trace.ranks[0].computes_in


def _ratios(reference: Trace, trace: Trace) -> list[float]:
    """How many times as long the reference took for each few steps; on a GPU single ones end when they please."""
    times = [[step.time for step in run.ranks[0].backwards] for run in (reference, trace)]
    count = min(map(len, times))
    first = max(_WARM, count // 5)
    size = max(1, (count - 1 - first) // _BLOCKS)
    marks = range(first, count, size)
    lengths = [[row[after] - row[before] for before, after in itertools.pairwise(marks)] for row in times]
    return [one / other for one, other in zip(*lengths, strict=True) if one > 0 and other > 0]


def _spread(ratios: Sequence[float]) -> tuple[float, float]:
    """Between what the median lies."""
    ordered, middle = sorted(ratios), (len(ratios) - 1) / 2
    away = _SPREAD * math.sqrt(len(ratios))
    return ordered[max(math.floor(middle - away), 0)], ordered[min(math.ceil(middle + away), len(ratios) - 1)]
