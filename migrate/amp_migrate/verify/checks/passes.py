"""Passes over data: what was read in each, whether it was trained on, and whether the pass was whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from amp_migrate.verify.traces import Batch, RankTrace

Sample = tuple[str, int]
"""A name that is the same in every run: the data and the place in it, or a digest of the content."""


@dataclass(frozen=True)
class Pass:
    """One iteration over a loader.

    Attributes:
        data: what it reads: the data below all subsets, or of samples without indices the loader.
        loader: number of the loader.
        batches: in the order in which they were handed out.
        trains: whether backward calls come between its batches; None where a single batch does not tell.
        whole: whether it was read to its end.
    """

    data: str
    loader: int
    batches: tuple[Batch, ...]
    trains: bool | None
    whole: bool

    @property
    def begin(self) -> int:
        """The number of backward calls before its first batch."""
        return self.batches[0].before

    @property
    def samples(self) -> list[Sample]:
        """Their names; empty where they have none that would be the same in another run."""
        return [sample for batch in self.batches for sample in named(batch)]

    @property
    def is_named(self) -> bool:
        """Whether all its samples have names."""
        return all(map(named, self.batches))

    @property
    def contents(self) -> list[str]:
        """What its samples hold; empty where that is not known of all."""
        held = [batch.contents for batch in self.batches]
        return [digest for part in held for digest in part] if all(held) else []

    @property
    def sizes(self) -> list[int]:
        """The number of samples in each batch."""
        return [count(batch) for batch in self.batches]


def named(batch: Batch) -> list[Sample]:
    """The names of its samples: by content only where nothing random is known to have gone into it."""
    if batch.data:
        return [(batch.data, sample) for sample in batch.samples]
    return [(digest, 0) for digest in batch.contents] if not batch.random else []


def count(batch: Batch) -> int:
    """The number of its samples; 0 if unknown."""
    return len(batch.indices) or len(batch.contents)


def passes(rank: RankTrace, *, ended: bool) -> list[Pass]:
    """All passes of a process, in the order in which they began.

    Args:
        rank: what it recorded.
        ended: whether it came to the end of the script, so that no pass was cut off from outside.
    """
    parts: defaultdict[tuple[int, int], list[Batch]] = defaultdict(list)
    for batch in rank.batches:
        parts[batch.loader, batch.epoch].append(batch)
    last = {loader: epoch for loader, epoch in sorted(parts)}
    return [_pass(rank, loader, part, is_over=ended or epoch < last[loader]) for (loader, epoch), part in parts.items()]


def training(found: Sequence[Pass]) -> dict[str, list[Pass]]:
    """The passes that were trained on, by their loader."""
    result: defaultdict[str, list[Pass]] = defaultdict(list)
    for part in found:
        if part.trains:
            result[f"loader {part.loader}"].append(part)
    return dict(result)


def _pass(rank: RankTrace, loader: int, part: Sequence[Batch], *, is_over: bool) -> Pass:
    length = part[0].length
    # What has no length was read to its end if it was left at all; a loop may leave it early, in each run alike.
    whole = len(part) >= length if length else is_over
    return Pass(part[0].data or f"loader {loader}", loader, tuple(part), _trains(rank, part), whole)


def _trains(rank: RankTrace, part: Sequence[Batch]) -> bool | None:
    if part[0].before >= len(rank.backwards):
        return None if len(part) == 1 else False  # the run may have been ended there
    if len({batch.before for batch in part}) > 1:
        return True
    if len(part) > 1 or not part[0].learns:
        return False
    following = rank.batches[rank.batches.index(part[0]) + 1 :]
    return True if all(batch.before > part[0].before for batch in following[:1]) else None
