"""Samples that the original reads in the order of its dataset are read in order by several processes too.

A DistributedSampler shuffles if it is not told otherwise. In one process its order is held against the original's, so
only several processes show that a version that was given shuffles what the original does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from amp_migrate.verify.checks.common import Traces, at, first_rank, keeps_its_own, together
from amp_migrate.verify.checks.loaders import epochs, indices, training_loaders, windows
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import ORIGINAL, Asked
from amp_migrate.verify.traces import Batch, RankTrace

ID = "in-order"
TITLE = "What the original reads in order, the processes read in order"


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the loaders that feed the training."""
    original, ranks = first_rank(traces, ORIGINAL), together(traces)
    if not asked.native or original is None or not ranks or keeps_its_own(traces, asked):
        return
    mine = training_loaders(original)
    for number, loader in enumerate(mine):
        if not all(map(_is_sorted, epochs(original, loader))):
            continue
        theirs = [(rank, found[number]) for rank in ranks if len(found := training_loaders(rank)) == len(mine)]
        shuffled = [rank for rank, other in theirs if not all(map(_is_sorted, epochs(rank, other)))]
        if shuffled:
            message = (
                f"The original reads the samples before {_reader(original, loader)} in the order of the dataset, the "
                "processes shuffle them. A DistributedSampler does unless it is made with shuffle=False."
            )
            yield Check(ID, TITLE, "unproved", message)
            return
        if len(theirs) == len(ranks):
            yield Check(ID, TITLE, "proved", "Each process reads its samples in the order of the dataset.")
            return


def _is_sorted(part: Sequence[Batch]) -> bool:
    """Whether the samples of one pass ascend; its last batch may be filled up from the start."""
    samples = indices(part[:-1] if len(part) > 1 else part)
    return len(samples) > 1 and all(first < second for first, second in pairwise(samples))


def _reader(rank: RankTrace, loader: int) -> str:
    for step, window in zip(rank.backwards, windows(rank), strict=True):
        if any(batch.loader == loader for batch in window):
            return at(step)
    return "the training"
