"""Which loaders feed the training, and which samples they gave to each step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from amp_migrate.verify.traces import Batch, RankTrace

_SHARE = 5


def windows(rank: RankTrace) -> list[list[Batch]]:
    """For each backward call the batches that were handed out since the one before."""
    result: list[list[Batch]] = [[] for _ in rank.backwards]
    for batch in rank.batches:
        if batch.before < len(result):
            result[batch.before].append(batch)
    return result


def training_loaders(rank: RankTrace) -> list[int]:
    """The loaders whose batches the backward calls come from, in the order in which they were first read.

    Of the loaders that were read since the last backward call, the training one gave the fewest batches, because an
    evaluation reads a whole loader; of equals it is the last. A loader counts that is the one for every fifth of the
    backward calls that had a new batch, so a batch looked at now and then does not.
    """
    chosen: Counter[int] = Counter()
    for window in windows(rank):
        counts = Counter(batch.loader for batch in window)
        if counts:
            fewest = min(counts.values())
            chosen[next(batch.loader for batch in reversed(window) if counts[batch.loader] == fewest)] += 1
    return [loader for loader, count in chosen.items() if count * _SHARE >= chosen.total()]


def epochs(rank: RankTrace, loader: int) -> list[list[Batch]]:
    """The batches of one loader, for each time that it was iterated; without those that read nothing."""
    result: defaultdict[int, list[Batch]] = defaultdict(list)
    for batch in rank.batches:
        if batch.loader == loader:
            result[batch.epoch].append(batch)
    return [result[epoch] for epoch in sorted(result)]


def indices(batches: Sequence[Batch]) -> list[int]:
    """Their samples, one after the other."""
    return [index for batch in batches for index in batch.indices]
