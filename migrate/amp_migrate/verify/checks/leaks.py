"""What is evaluated with and trained on, for the check of what the processes draw."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks.common import at
from amp_migrate.verify.checks.passes import Pass, Sample, named
from amp_migrate.verify.traces import RankTrace

_FEW = 3


def evaluated(right: Sequence[Pass], found: Sequence[Sequence[Pass]], rank: RankTrace) -> str:
    """What is evaluated with and trained on, where the original keeps them apart, as a sentence; empty if nothing."""
    only = {part.loader: part for part in right if part.trains is False and _is_indexed(part)}
    for part in right:
        if part.trains is not False:
            only.pop(part.loader, None)
    for part in itertools.chain(*found):
        own = only.get(part.loader)
        if part.trains and own is not None and _kind(part) == _kind(own):
            where = at(rank.backwards[min(part.begin, len(rank.backwards) - 1)])
            return (
                f"At {where} the processes train on a loader over {plural(own.batches[0].size, 'sample')} that the "
                "original only evaluates with. Train on the loader that it trains on."
            )
    own_leaks = {part.loader: _kind(part) for part, _ in _leaks([right])}
    evaluated = {part.loader for part in right if part.trains is False}
    for part, samples in _leaks(found):
        if part.loader in own_leaks or (part.loader not in evaluated and _kind(part) in own_leaks.values()):
            continue
        listed = ", ".join(str(index) for _, index in sorted(samples)[:_FEW])
        where = at(rank.backwards[max(0, min(part.begin, len(rank.backwards)) - 1)])
        return (
            f"{plural(len(samples), 'sample')} (such as {listed}) are trained on at {where} and then evaluated with, "
            "in the original none. All ranks must split the data alike: seed the split, or draw it before the loop."
        )
    return ""


def _leaks(found: Sequence[Sequence[Pass]]) -> Iterator[tuple[Pass, set[Sample]]]:
    """Evaluations with samples that any rank was trained on since the one before."""
    every = list(itertools.chain(*found))
    evaluations = [part for part in every if part.trains is False and _is_indexed(part)]
    begins = sorted({part.begin for part in evaluations})
    learnt = [(batch.before, set(named(batch))) for part in every if part.trains for batch in part.batches]
    for part in evaluations:
        since = max((begin for begin in begins if begin < part.begin), default=0)
        trained = {sample for before, samples in learnt if since <= before < part.begin for sample in samples}
        if leaked := trained & set(part.samples):
            yield part, leaked


def _is_indexed(part: Pass) -> bool:
    return all(batch.data for batch in part.batches)


def _kind(part: Pass) -> tuple[str, int]:
    return part.data, part.batches[0].size
