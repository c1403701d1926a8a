"""What a whole number that a script prints may count: samples or steps, known from what the recorder saw."""

from __future__ import annotations

from collections.abc import Iterator

from amp_migrate.verify.traces import Batch, RankTrace


def is_of_samples(rank: RankTrace, number: float, end: int | None) -> bool:
    """Whether it is the number of samples that the process has read from a loader: in this pass, or in all so far."""
    return number > 0 and number in set(_samples(rank, end))


def is_of_steps(rank: RankTrace, number: float, end: int | None) -> bool:
    """Whether it is a number of batches, backward calls or updates, of all or of a pass; or one less, or more."""
    found = set(_steps(rank, end))
    return bool({number - 1, number, number + 1} & found)


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
