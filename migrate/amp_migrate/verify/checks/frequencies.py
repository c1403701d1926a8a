"""Whether two series of random draws come from the same distribution.

What one half of the first series drew often, and what it did not draw, are looked for in its other half and in the
second series: both must have them in the same share. Draws of one batch belong together, as a sampler may take several
of one class, so shares are means over batches, and their errors come from how batches differ. Shares may change as
training goes on; by how much the first series changes between its halves counts as chance.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Sequence

_SIGMAS = 6.0
"""A difference of so many standard errors is no chance, also where many scripts are looked at."""
_OF_REPEATS = 4.0
"""The same for repeats, which scatter less than if each came by itself."""
_OWN = 3.0
_FEWEST = 8
_LEAST = 0.02

Batches = Sequence[Sequence[Hashable]]


def apart(one: Batches, other: Batches) -> bool | None:
    """Whether other things were drawn, or the same things in other shares; None with too few batches to tell."""
    known, left = one[::2], one[1::2]
    if min(len(left), len(other)) < _FEWEST:
        return None
    counts = Counter(thing for batch in known for thing in batch)
    often = 2 * counts.total() / len(counts)
    groups = {thing for thing, count in counts.items() if count >= often}, set(counts)
    return any(_differ(_shares(left, group), _shares(other, group)) for group in groups)


def repeats(one: Batches, other: Batches) -> bool:
    """Whether one series repeats itself far more often than the other, as draws with replacement do."""
    draws = [[thing for batch in series for thing in batch] for series in (one, other)]
    # As many of each, for repeats grow with the square of their number.
    length = min(map(len, draws))
    counts = [length - len(set(part[:length])) for part in draws]
    return abs(counts[0] - counts[1]) > _OF_REPEATS * math.sqrt(max(sum(counts), 1))


def _shares(batches: Batches, group: set[Hashable]) -> list[float]:
    """The share of each batch that is of the group."""
    return [sum(thing in group for thing in batch) / len(batch) for batch in batches if batch]


def _differ(left: Sequence[float], other: Sequence[float]) -> bool:
    middle = len(left) // 2
    own = _distance(left[:middle], left[middle:])
    far = abs(statistics.fmean(left) - statistics.fmean(other))
    return far > _LEAST and _distance(left, other) > max(_SIGMAS, _OWN * own)


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """The distance of the means in standard errors."""
    error = math.sqrt(sum(statistics.pvariance(part) / len(part) for part in (one, other)))
    apart = abs(statistics.fmean(one) - statistics.fmean(other))
    return apart / error if error else math.inf if apart else 0.0
