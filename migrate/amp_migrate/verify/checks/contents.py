"""A sample holds the same on all ranks.

A sample is known by its place in the data. What it holds is compared where it is the same in one process whenever it
comes up: in each pass, and in the run on the joined batches, which reads samples in another order. Samples that are
drawn, cropped at random or padded to the longest of a batch are not.

Mostly each rank has samples of its own, so that ranks are compared by way of the same version in one process: where
one rank has what that has, the others must have it, too. Labels tell more. Where those of a rank are the ones of one
process under other names, each for one, and of another rank under others again, they are numbered in an order that
differs from process to process, as that of a set does: that is disproof. Where a rank has other samples altogether, as
random data that each rank draws by itself, it stays open.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks import ways
from amp_migrate.verify.checks.common import Traces, at, first_rank, keeps_its_own, together, together_in_words
from amp_migrate.verify.checks.loaders import windows
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O0, ORIGINAL, ORIGINAL_MERGED, Asked
from amp_migrate.verify.traces import Batch, RankTrace

ID = "contents"
TITLE = "A sample holds the same on all ranks"

_CERTAIN = 20
"""So many bits speak against chance."""
_MOST_SHOWN = 3

Sample = tuple[str, int]
Table = Mapping[Sample, set[str]]


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare what samples hold, and their labels."""
    ranks, alone = together(traces), first_rank(traces, O0)
    if not ranks or alone is None or keeps_its_own(traces, asked):
        return
    before = [rank for name in (ORIGINAL, ORIGINAL_MERGED) if (rank := first_rank(traces, name)) is not None]
    if (found := _other_labels(before, alone, ranks)) is not None:
        yield found
        return
    if not _is_fixed(before, _contents):
        return
    right = _table([alone], _contents)
    tables = [_table([rank], _contents) for rank in ranks]
    common = [[sample for sample in mine if sample in right] for mine in tables]
    other = [
        sorted(sample for sample in both if not mine[sample] <= right[sample])
        for mine, both in zip(tables, common, strict=True)
    ]
    wrong = next((number for number, part in enumerate(other) if part), None)
    if wrong is None and any(common):
        message = (
            f"The contents of {plural(sum(map(len, common)), 'sample')} are the same on {len(ranks)} ranks as in one "
            "process."
        )
        yield Check(ID, TITLE, "proved", message)
    elif wrong is not None and not all(other):
        # What all ranks have otherwise than one process, they may well have alike.
        message = _other_contents(ranks, ranks[wrong], other[wrong], len(common[wrong]))
        yield Check(ID, TITLE, "unproved", message)


def _contents(batch: Batch) -> Sequence[str]:
    return batch.contents


def _labels(batch: Batch) -> Sequence[str]:
    return batch.labels


Kind = Callable[[Batch], Sequence[str]]


def _table(ranks: Sequence[RankTrace], kind: Kind) -> dict[Sample, set[str]]:
    """What each sample was found to hold; only those that have a place in the data."""
    result: defaultdict[Sample, set[str]] = defaultdict(set)
    for rank in ranks:
        for batch in rank.batches:
            if batch.data and len(kind(batch)) == len(batch.samples):
                for sample, held in zip(batch.samples, kind(batch), strict=True):
                    result[batch.data, sample].add(held)
    return dict(result)


def _is_fixed(ranks: Sequence[RankTrace], kind: Kind) -> bool:
    """Whether each sample always holds the same, though most came up together with different ones.

    What is padded to the longest of its batch holds the same as long as its batches are the same.
    """
    beside: defaultdict[Sample, set[frozenset[int]]] = defaultdict(set)
    for rank in ranks:
        for batch in rank.batches:
            for sample in batch.samples if batch.data else ():
                beside[batch.data, sample].add(frozenset(batch.samples))
    held = _table(ranks, kind)
    again = sum(len(batches) > 1 for batches in beside.values())
    return bool(held) and again * 2 > len(beside) and all(len(found) == 1 for found in held.values())


def _other_labels(before: Sequence[RankTrace], alone: RankTrace, ranks: Sequence[RankTrace]) -> Check | None:
    """What is said where a rank has the labels of one process under other names."""
    if not _is_fixed(before, _labels):
        return None
    right = _table([alone], _labels)
    known: dict[str, str] = {}
    for rank in ranks:
        mine = _table([rank], _labels)
        pairs = [(sample, min(right[sample]), min(mine[sample])) for sample in sorted(mine) if sample in right]
        names = _names([(one, two) for _, one, two in pairs])
        if any(known.get(one, two) != two for one, two in names.items()):
            return _renamed(ranks, rank, pairs, known)
        known |= names
    return None


def _names(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """What each label became, where that is always the same and another one for each, and too often for chance."""
    names = dict(pairs)
    kinds = len(set(names.values()))
    if any(names[one] != two for one, two in pairs) or kinds < len(names) or kinds < 2:
        return {}
    return names if (len(pairs) - len(names)) * math.log2(kinds) >= _CERTAIN else {}


def _renamed(
    ranks: Sequence[RankTrace], rank: RankTrace, pairs: Sequence[tuple[Sample, str, str]], known: Mapping[str, str]
) -> Check:
    other = [(sample, one, two) for sample, one, two in pairs if known.get(one, two) != two]
    sample, one, two = other[0]
    message = (
        f"{len(other)} of {plural(len(pairs), 'sample')} have other labels on rank {rank.rank} than on the ranks "
        f"before it, such as sample {sample[1]} before {_where(rank, sample)}: {two} in place of {known[one]}. Labels "
        f"are numbered in another order there.{_unordered(ranks)} Number them in a sorted order, or in one that "
        "amp.same_order gives."
    )
    return Check(ID, TITLE, "disproved", message)


def _other_contents(ranks: Sequence[RankTrace], rank: RankTrace, other: Sequence[Sample], count: int) -> str:
    listed = ", ".join(str(place) for _, place in other[:_MOST_SHOWN])
    drawn = ways.drawing_apart(ranks)
    hint = f" Each rank draws numbers of its own at {drawn}." if drawn else _unordered(ranks)
    return (
        f"{len(other)} of {plural(count, 'sample')} (such as {listed}, before {_where(rank, other[0])}) hold something "
        f"else on rank {rank.rank} than in one process, and in one process always the same.{hint} All ranks must have "
        "the same data: draw, shuffle and number it alike on all of them."
    )


def _where(rank: RankTrace, sample: Sample) -> str:
    """The first backward call that a sample leads to."""
    data, place = sample
    for step, window in zip(rank.backwards, windows(rank), strict=True):
        if any(batch.data == data and place in batch.samples for batch in window):
            return at(step)
    return at(rank.backwards[-1])


def _unordered(ranks: Sequence[RankTrace]) -> str:
    sites = list(dict.fromkeys(site for rank in ranks for site in rank.followed.unordered))
    return f" The order of a set is taken at {together_in_words(sites[:_MOST_SHOWN])}." if sites else ""
