"""Each process trains on samples of its own.

Within an epoch of a loader that feeds the training no two processes get the same sample, except in the last batch,
which may repeat some so that all have equally many. Where the original, or a single process, draws a sample more than
once in an epoch, with replacement, only equal sequences are disproof.

The samples are known by the indices that a DataLoader's sampler gives. Without indices, equal losses on all processes
at every step tell that they read the same, in a script that was written for one process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks.common import (
    Traces,
    at,
    first_rank,
    is_distributed_already,
    keeps_its_own,
    together,
)
from amp_migrate.verify.checks.loaders import epochs, indices, training_loaders, windows
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import ORIGINAL, Asked
from amp_migrate.verify.traces import Batch, RankTrace

ID = "shares"
TITLE = "Each process trains on its own share of the data"

_FEW = 3
_CHANCE = 100
"""Of so many samples one may be on two processes by chance, where a sampler draws with replacement."""
_OF_ROWS = 4
"""Of so many rows in a step one may be on two processes by chance, where batches are drawn from few samples."""
_WHAT_TO_DO = "Pass the loader through amp.prepare_loader."


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare the samples of the processes, loader by loader."""
    ranks = together(traces)
    if not ranks or keeps_its_own(traces, asked):
        return
    known = [loader for loader in training_loaders(ranks[0]) if _known(ranks, loader)]
    if not known:
        yield _without_indices(traces, ranks)
        return
    compared = 0
    for loader in known:
        repeats = _draws_repeatedly(traces, ranks, loader)
        for number, parts in enumerate(zip(*(epochs(rank, loader) for rank in ranks), strict=False)):
            where = f"epoch {number + 1} of the loader before {_reader(ranks[0], loader)}"
            samples = [indices(part) for part in parts]
            if len(set(samples[0])) == 1 and len({index for sample in samples for index in sample}) == 1:
                continue  # a single sample cannot be shared out
            compared += sum(map(len, samples))
            if all(sample == samples[0] for sample in samples[1:]):
                message = (
                    f"All {len(ranks)} processes read the same samples in the same order in {where}. {_WHAT_TO_DO}"
                )
                yield Check(ID, TITLE, "disproved", message)
                return
            shared = [] if repeats else _shared(parts)
            if shared and len(shared) * _CHANCE < sum(map(len, samples)):
                message = (
                    f"{plural(len(shared), 'sample')} of {sum(map(len, samples))} went to more than one process in "
                    f"{where}, as a sampler that draws with replacement may do by chance."
                )
                yield Check(ID, TITLE, "unproved", message)
                return
            if shared:
                listed = ", ".join(map(str, shared[:_FEW]))
                message = (
                    f"{plural(len(shared), 'sample')} (such as {listed}) went to more than one process in {where}. "
                    f"{_WHAT_TO_DO}"
                )
                yield Check(ID, TITLE, "disproved", message)
                return
    if compared:
        message = f"{plural(compared, 'sample')} of {plural(len(known), 'loader')} went to one process each."
        if any(_draws_repeatedly(traces, ranks, loader) for loader in known):
            message = f"{plural(compared, 'sample')} were drawn with replacement, in another order on each process."
        yield Check(ID, TITLE, "proved", message)
    else:
        yield Check(ID, TITLE, "unproved", "The training reads a single sample, which cannot be split.")


def _known(ranks: Sequence[RankTrace], loader: int) -> bool:
    """Whether all processes read the loader, and the samples of all its batches have indices."""
    batches = [[batch for batch in rank.batches if batch.loader == loader] for rank in ranks]
    return all(batches) and all(batch.indices for part in batches for batch in part)


def _shared(parts: Sequence[Sequence[Batch]]) -> list[int]:
    """Samples of one epoch on more than one process, without the last batch of each where there are others."""
    counts = Counter(index for part in parts for index in set(indices(part[:-1] if len(part) > 1 else part)))
    shared = sorted(index for index, count in counts.items() if count > 1)
    # An epoch of one batch may be filled up by a sample for each other process.
    filled_up = all(len(part) == 1 for part in parts) and len(shared) < len(parts)
    return [] if filled_up else shared


def _draws_repeatedly(traces: Traces, ranks: Sequence[RankTrace], loader: int) -> bool:
    """Whether the original, or one process by itself, gets a sample twice in an epoch.

    The processes draw more samples than the original does in as many steps, and so begin a sampler without end anew.
    """
    original = first_rank(traces, ORIGINAL)
    passes = list(map(indices, epochs(original, loader))) if original is not None else []
    # The last batch may be filled up.
    passes += [indices(part[:-1]) for rank in ranks for part in epochs(rank, loader)]
    return any(len(set(found)) < len(found) for found in passes)


def _reader(rank: RankTrace, loader: int) -> str:
    """The first backward call before which the loader was read."""
    for step, window in zip(rank.backwards, windows(rank), strict=True):
        if any(batch.loader == loader for batch in window):
            return at(step)
    return "the training"


def _without_indices(traces: Traces, ranks: Sequence[RankTrace]) -> Check:
    losses = [[step.loss.hex() for step in rank.backwards] for rank in ranks]
    steps = len(losses[0])
    same = all(other == losses[0] for other in losses[1:])
    if same and len(set(losses[0])) >= _FEW and not is_distributed_already(traces):
        message = (
            f"All {len(ranks)} processes have the same loss at each of {steps} steps, so they train on the same "
            "samples. Let each rank read its own part of the data: amp.prepare_loader splits any iterable of batches."
        )
        return Check(ID, TITLE, "disproved", message)
    known, alike = _inputs(ranks)
    # What is drawn at random comes up on several by chance.
    by_chance = known // _OF_ROWS if any(step.random for step in ranks[0].backwards) else 0
    if known and alike <= by_chance and not is_distributed_already(traces):
        message = (
            f"Of {known} rows of data that go into the model in the first steps, {alike or 'none'} came up on two "
            "processes in the same step. The training makes its batches itself."
        )
        return Check(ID, TITLE, "proved", message)
    message = (
        "Which samples the processes read is not known: the training does not read them from a DataLoader whose "
        f"sampler gives indices.{'' if same else ' Their losses differ, as they should.'}"
    )
    return Check(ID, TITLE, "unproved", message)


def _inputs(ranks: Sequence[RankTrace]) -> tuple[int, int]:
    """How many rows of data are known to have gone into the model, and how many of them on two ranks at once.

    What all ranks put in alike beside their samples, such as a table or a mask, is left out.
    """
    known = alike = 0
    for row in zip(*(rank.backwards for rank in ranks), strict=False):
        columns = list(zip(*(step.inputs for step in row), strict=False))
        own = [column for column in columns if len(set(column)) == len(column)]
        if not own:
            alike += sum(len(column[0]) for column in columns)
            continue
        known += sum(map(len, own[0]))
        counts = Counter(digest for rows in own[0] for digest in set(rows))
        alike += sum(count > 1 for count in counts.values())
    return known, alike
