"""Where the original reads its data in a new order in each epoch, so do the processes.

A DistributedSampler whose set_epoch is not called gives every epoch the same order. Two epochs are compared as far as
both were read. Where the original read only a single one there is nothing to compare, and how far the runs went is said
of all checks together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks.common import Traces, first_rank, keeps_its_own, together
from amp_migrate.verify.checks.loaders import epochs, indices, training_loaders
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import ORIGINAL, Asked
from amp_migrate.verify.traces import RankTrace

ID = "new-order"
TITLE = "Each epoch has a new order in several processes too"

_TELLING = 4
"""So many samples have to be in the same order before it is no chance."""


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the orders of successive epochs, in the original and in each process."""
    original, ranks = first_rank(traces, ORIGINAL), together(traces)
    if original is None or not ranks or keeps_its_own(traces, asked):
        return
    compared = unknown = 0
    mine, theirs = training_loaders(original), [training_loaders(rank) for rank in ranks]
    if any(len(loaders) != len(mine) for loaders in theirs):
        return
    # By the order in which they are read: a migrated script may make them anew, under other numbers.
    for loader, *others in zip(mine, *theirs, strict=True):
        before = _repeats(original, loader)
        if before is True:
            continue  # always the same order, as a loader without shuffle has
        after = [_repeats(rank, other) for rank, other in zip(ranks, others, strict=True)]
        if before is False and True in after:
            message = (
                "The original has a new order in each epoch, the processes read theirs in the same order every time. "
                "Call sampler.set_epoch(epoch) at the start of each epoch, or use amp.prepare_loader, which does it."
            )
            yield Check(ID, TITLE, "disproved", message)
            return
        compared += before is False and None not in after
        unknown += (before is None and len(list(epochs(original, loader))) > 1) or (before is False and None in after)
    if compared:
        message = f"The order of {plural(compared, 'loader')} changes from epoch to epoch on every process."
        yield Check(ID, TITLE, "proved", message)
    elif unknown:
        message = "No second epoch was read far enough, or by indices, to compare its order. Try more --steps."
        yield Check(ID, TITLE, "unproved", message)


def _repeats(rank: RankTrace, loader: int) -> bool | None:
    """Whether all epochs begin with the same samples in the same order; None where that is not known."""
    found = None
    for first, second in itertools.pairwise(map(indices, epochs(rank, loader))):
        length = min(len(first), len(second))
        if first[:length] != second[:length]:
            return False
        if length >= _TELLING and len(set(first[:length])) > 1:
            found = True
    return found
