"""Steps of several processes beside those of one process that sees the same samples."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from amp_migrate.verify.checks.loaders import training_loaders, windows
from amp_migrate.verify.traces import Backward, RankTrace

_Indices = tuple[int, ...]


def same_samples(ranks: Sequence[RankTrace], merged: RankTrace) -> int:
    """For how many steps from the start one process sees just the samples that the others see together.

    What all processes read alike, such as an evaluation's data, the one reads too. A step in which the processes'
    batches are of different sizes ends it: the mean of their means is another one. No step counts if no samples are
    known.
    """
    loaders = training_loaders(ranks[0])
    if not any(batch.loader in loaders and batch.indices for batch in ranks[0].batches):
        return 0
    steps = 0
    for one, *parts in zip(_samples(merged), *map(_samples, ranks), strict=False):
        if not all(_agree(one[loader], [part[loader] for part in parts]) for loader in {*one, *parts[0]}):
            break
        steps += 1
    return steps


def mean_losses(ranks: Sequence[RankTrace]) -> list[Backward]:
    """The steps of the first process with the mean loss of all."""
    columns = zip(*(rank.backwards for rank in ranks), strict=False)
    return [replace(column[0], loss=sum(step.loss for step in column) / len(column)) for column in columns]


def _agree(one: Sequence[_Indices], parts: Sequence[Sequence[_Indices]]) -> bool:
    """Whether one process reads of a loader what the others read, alike or as their shares."""
    if all(part == one for part in parts):
        return True
    if len({tuple(map(len, part)) for part in parts}) > 1:
        return False
    return Counter(chain(*one)) == Counter(index for part in parts for index in chain(*part))


def _samples(rank: RankTrace) -> list[defaultdict[int, list[_Indices]]]:
    """For each backward call the samples of the batches that were handed out before it, by loader."""
    result = []
    for window in windows(rank):
        by_loader: defaultdict[int, list[_Indices]] = defaultdict(list)
        for batch in window:
            by_loader[batch.loader].append(batch.indices)
        result.append(by_loader)
    return result
