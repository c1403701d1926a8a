"""N processes draw together what the original draws.

What they read in each pass over the training data is held against the original's own pass. Where it draws no sample
twice, a whole pass must have as many samples, and the same ones where the original has the same in each of its passes;
less than a round of batches may be left out, as the script asks for whole batches. Where it draws with replacement,
samples must come up in the same shares, and as often again (see :mod:`.frequencies`). No rank trains on what it or
another one evaluates on, nor on a loader that the original only evaluates with.

Samples are known by their place in the data below all subsets, which neither a split nor a shuffle changes, or by their
content where that is the same in each pass. A pass that the bound in steps cuts off is compared as far as its length
and its repeats tell.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from amp_migrate.out.terminal import plural
from amp_migrate.verify.checks import frequencies, leaks, ways
from amp_migrate.verify.checks.common import Traces, at, first_rank, keeps_its_own, together
from amp_migrate.verify.checks.passes import Pass, Sample, named, passes, training
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O0_TOGETHER, ORIGINAL, Asked
from amp_migrate.verify.traces import RankTrace

ID = "draws"
TITLE = "Together the processes draw what the original draws"

_FEW = 3
_WHAT_TO_DO = "Give amp.prepare_loader the loader that the original trains with, with its sampler and its split."


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare each pass over the training data, and what is evaluated with."""
    original, ranks = first_rank(traces, ORIGINAL), together(traces)
    if original is None or not ranks or keeps_its_own(traces, asked):
        return
    right = passes(original, ended=traces[ORIGINAL].status == "ended")
    found = [passes(rank, ended=traces[O0_TOGETHER].status == "ended") for rank in ranks]
    compared = [_Drawn(own, theirs, original, ranks[0], ranks[1:]) for own, theirs in _beside_each_other(right, found)]
    wrong = leaks.evaluated(right, found, ranks[0]) or next(
        (f"{words} {_WHAT_TO_DO}" for drawn in compared if (words := drawn.wrong())), ""
    )
    if wrong:
        yield Check(ID, TITLE, "disproved", wrong)
    elif compared:
        yield _held(compared, original)


def _held(compared: Sequence[_Drawn], original: RankTrace) -> Check:
    """What is said where nothing speaks against it."""
    known = [drawn for drawn in compared if drawn.is_known]
    if not known:
        message = (
            f"Which samples the loader before {at(original.backwards[0])} gives is not known: they have neither "
            "indices nor the same content in each pass."
        )
        return Check(ID, TITLE, "unproved", message)
    whole = sum(len(drawn.whole) for drawn in known)
    count = sum(len(drawn.seen) for drawn in known)
    if not whole:
        message = (
            f"{plural(count, 'sample')} were drawn, and fit the original's sampler. No pass over the data was "
            "whole; with more --steps it is seen whether every sample comes up."
        )
    else:
        over = "one whole pass" if whole == 1 else f"{whole} whole passes"
        message = f"In {over} they drew what the original does: {plural(count, 'sample')}."
    return Check(ID, TITLE, "proved", message)


def _beside_each_other(
    right: Sequence[Pass], found: Sequence[Sequence[Pass]]
) -> Iterator[tuple[Sequence[Pass], list[tuple[Pass, ...]]]]:
    """The original's training passes over each loader, and the ranks' passes over it one by one.

    A migrated script may make loaders anew, under other numbers: then those over the same data stand together.
    """
    mine, theirs = training(right), [training(part) for part in found]
    if not all(part.keys() <= mine.keys() for part in theirs):
        mine = _by_data(mine)
        theirs = [_by_data(part) for part in theirs]
    for key, own in mine.items():
        yield own, list(zip(*(part.get(key, []) for part in theirs), strict=False))


def _by_data(found: Mapping[str, Sequence[Pass]]) -> dict[str, list[Pass]]:
    result: dict[str, list[Pass]] = {}
    for part in sorted((part for parts in found.values() for part in parts), key=lambda part: part.begin):
        result.setdefault(part.data, []).append(part)
    return result


@dataclass
class _Drawn:
    """The original's passes over some data, and beside each of them those of the ranks.

    Attributes:
        own: the original's.
        theirs: beside each of them the passes of the ranks, as far as there are as many.
        original: what the original recorded.
        rank: what the first rank did.
        others: what the others did.
    """

    own: Sequence[Pass]
    theirs: Sequence[Sequence[Pass]]
    original: RankTrace
    rank: RankTrace
    others: Sequence[RankTrace]

    def wrong(self) -> str:
        """What differs, as a sentence; empty if nothing does, or nothing is known."""
        if not self.is_known:
            return ""
        for number, (own, parts) in enumerate(self.pairs):
            words = self._lengths(own, parts) or self._samples(own, parts) or self._by_content(own, parts)
            if words:
                return f"In pass {number + 1} {self._where(own, parts)} the original draws {words}."
        return self._shares()

    def _where(self, own: Pass, parts: Sequence[Pass]) -> str:
        """The data, and the backward calls that its batches lead to, in both versions."""
        right, other = (
            rank.backwards[min(part.begin, len(rank.backwards) - 1)]
            for rank, part in ((self.original, own), (self.rank, parts[0]))
        )
        return f"over {own.data.partition('/')[0]} before {at(right, other)}"

    @cached_property
    def pairs(self) -> list[tuple[Pass, Sequence[Pass]]]:
        """Passes that stand beside each other."""
        return list(zip(self.own, self.theirs, strict=False))

    @cached_property
    def whole(self) -> list[tuple[Pass, Sequence[Pass]]]:
        """Those of them that were read to their end by all."""
        return [(own, parts) for own, parts in self.pairs if all(part.whole for part in (own, *parts))]

    @cached_property
    def seen(self) -> set[Sample]:
        """All samples that the processes drew."""
        return {sample for _, parts in self.pairs for part in parts for sample in part.samples}

    @cached_property
    def is_known(self) -> bool:
        """Whether samples have names, and names are of samples: content must be the same whenever one comes up."""
        if not self.pairs or not all(part.is_named for own, parts in self.pairs for part in (own, *parts)):
            return False
        if all(batch.data for batch in self.own[0].batches):
            return True
        first, *others = [set(own.samples) for own in self.own if own.whole] or [set()]
        return bool(others) and all(first == other for other in others)

    @cached_property
    def fixed(self) -> set[Sample] | None:
        """The samples that the original has in each of its passes; None where they are others, or not known."""
        found = [set(own.samples) for own in self.own if own.whole]
        if not found or any(other != found[0] for other in found[1:]):
            return None
        return found[0] if len(found) > 1 or len(found[0]) == self.own[0].batches[0].size else None

    def _lengths(self, own: Pass, parts: Sequence[Pass]) -> str:
        """Whether passes that were cut off would have been as long."""
        firsts = [part.batches[0] for part in parts]
        right = own.batches[0].length * own.sizes[0]
        other = sum(first.length * part.sizes[0] for first, part in zip(firsts, parts, strict=True))
        even = all(len(set(part.sizes[:-1])) <= 1 for part in (own, *parts))
        if not even or not own.batches[0].length or not all(first.length for first in firsts):
            return ""
        if abs(right - other) <= sum(part.sizes[0] for part in (own, *parts)):
            return ""
        return f"about {plural(right, 'sample')}, the processes together about {other}"

    def _samples(self, own: Pass, parts: Sequence[Pass]) -> str:
        right, other = own.samples, _in_turns(parts)
        whole = own.whole and all(part.whole for part in parts)
        round_ = sum(max(part.sizes) for part in parts)
        distinct = set(other)
        if len(set(right)) < len(right):
            if whole and abs(len(right) - len(other)) > round_:
                return f"{plural(len(right), 'sample')}, the processes together {len(other)}"
            if not _agree(right, other, round_) and frequencies.repeats([right], [other]):
                return (
                    f"some samples again and again, the processes {'less' if len(distinct) == len(other) else 'others'}"
                )
            return ""
        if len(other) - len(distinct) > round_:
            return f"no sample twice, the processes draw {len(other) - len(distinct)} of {len(other)} more than once"
        spare = max(own.sizes) - 1
        if whole:
            missing = len(right) - len(distinct)
            if missing > self._left_out(right, parts) or -missing > spare:
                return f"{plural(len(right), 'sample')}, the processes together {len(distinct)}"
        if self.fixed is not None and len(distinct - self.fixed) > spare:
            return f"the same {len(self.fixed)} samples as always, the processes {len(distinct - self.fixed)} others"
        return ""

    @cached_property
    def held(self) -> set[str]:
        """What the samples hold that the original has in each of its passes; empty where it is not always the same.

        What lies at one place may change from pass to pass, as in a list that is shuffled itself. A script may make a
        loader for each pass.
        """
        every = passes(self.original, ended=False)
        found = [part.contents for part in every if part.trains and part.whole and part.data == self.own[0].data]
        first = set(found[0]) if len(found) > 1 else set()
        return first if all(len(part) == len(first) and set(part) == first for part in found) else set()

    def _by_content(self, own: Pass, parts: Sequence[Pass]) -> str:
        """Whether a whole pass has all samples, whatever places they have."""
        if not self.held or not (own.whole and all(part.whole and part.contents for part in parts)):
            return ""
        drawn = {held for part in parts for held in part.contents}
        missing = len(self.held - drawn)
        if drawn - self.held or missing <= self._left_out(own.samples, parts):
            return ""
        apart = ways.drawing_apart([self.rank, *self.others])
        hint = f" Each rank draws numbers of its own at {apart}: shuffle the data alike on all ranks" if apart else ""
        return f"{plural(len(self.held), 'sample')}, the processes together {len(drawn)} by what they hold.{hint}"

    def _left_out(self, right: Sequence[Sample], parts: Sequence[Pass]) -> int:
        """How many samples may be left out, so that all ranks have equally many, and whole batches."""
        sizes = [part.sizes for part in parts]
        if any(len(set(part[:-1])) > 1 for part in sizes):
            return sum(map(max, sizes))
        is_full = all(part[-1] == part[0] for part in sizes)
        return len(right) % sum(part[0] for part in sizes) if is_full else len(parts) - 1

    def _shares(self) -> str:
        """Whether samples that are drawn with replacement come up in the same shares."""
        drawn = [(own, parts) for own, parts in self.pairs if len(set(own.samples)) < len(own.samples)]
        if all(_agree(own.samples, _in_turns(parts), 0) for own, parts in drawn):
            return ""
        one = [named(batch) for own, _ in drawn for batch in own.batches]
        other = [named(batch) for _, parts in drawn for part in parts for batch in part.batches]
        if not frequencies.apart(one, other):
            return ""
        where = self._where(*self.pairs[0])
        return (
            f"The processes draw samples {where} with other frequencies than the original does, as if by another "
            "sampler."
        )


def _in_turns(parts: Sequence[Pass]) -> list[Sample]:
    """The samples of the ranks' passes, a batch of each in turn."""
    rows = itertools.zip_longest(*(part.batches for part in parts))
    return [sample for row in rows for batch in row if batch is not None for sample in named(batch)]


def _agree(right: Sequence[Sample], other: Sequence[Sample], spare: int) -> bool:
    """Whether the same samples were drawn equally often, but for so many."""
    one, two = Counter(right), Counter(other)
    return max((one - two).total(), (two - one).total()) <= spare
