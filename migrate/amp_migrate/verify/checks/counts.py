"""What a whole number that a script prints may count: samples or steps, known from what the recorder saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_migrate.verify.checks.loaders import epochs, indices, training_loaders
from amp_migrate.verify.traces import Batch, RankTrace


def is_of_samples(rank: RankTrace, number: float, end: int | None) -> bool:
    """Whether it is the number of samples that the process has read from a loader: in this pass, or in all so far."""
    return number > 0 and number in set(_samples(rank, end))


def is_of_steps(rank: RankTrace, number: float, end: int | None) -> bool:
    """Whether it is a number of batches, backward calls or updates, of all or of a pass; or one less, or more."""
    found = set(_steps(rank, end))
    return bool({number - 1, number, number + 1} & found)


def ends_of_passes(rank: RankTrace) -> set[int]:
    """The numbers of backward calls made when a pass over a training loader begins or ends."""
    found = {0, len(rank.backwards)}
    known: set[tuple[int, int]] = set()
    loaders = training_loaders(rank)
    for batch in rank.batches:
        if batch.loader in loaders and (batch.loader, batch.epoch) not in known:
            known.add((batch.loader, batch.epoch))
            found.add(batch.before)
    return found


def shared_evaluations(ranks: Sequence[RankTrace]) -> set[int]:
    """The numbers of backward calls after which the ranks read shares of what is only evaluated."""
    found: set[int] = set()
    for loader in sorted({batch.loader for batch in ranks[0].batches}):
        for parts in zip(*(epochs(rank, loader) for rank in ranks), strict=False):
            if any(batch.learns for part in parts for batch in part):
                continue
            if any(indices(part) != indices(parts[0]) for part in parts[1:]):
                found |= {batch.before for batch in parts[0]}
    return found


def _passes(rank: RankTrace, end: int | None) -> dict[int, dict[int, list[Batch]]]:
    """The batches so far by loader and pass."""
    found: dict[int, dict[int, list[Batch]]] = {}
    for batch in rank.batches:
        if end is None or batch.before < end:
            found.setdefault(batch.loader, {}).setdefault(batch.epoch, []).append(batch)
    return found


def _samples(rank: RankTrace, end: int | None) -> Iterator[int]:
    for passes in _passes(rank, end).values():
        counts = [sum(len(batch.indices) for batch in batches) for batches in passes.values()]
        yield from (sum(counts), counts[-1])


def _steps(rank: RankTrace, end: int | None) -> Iterator[int]:
    yield len(rank.backwards) if end is None else end
    yield sum(1 for update in rank.updates if end is None or update.after <= end)
    for batch in rank.batches:
        if batch.length:
            yield batch.length
    for passes in _passes(rank, end).values():
        counts = [len(batches) for batches in passes.values()]
        yield from (sum(counts), counts[-1])
