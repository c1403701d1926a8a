"""At which line of the script something was done that shows in numbers later, for checks that have found it there.

Lines say where, never whether: a process may go another way because it is the one that prints.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from amp_migrate.verify.checks.common import together_in_words
from amp_migrate.verify.followed import Line
from amp_migrate.verify.traces import RankTrace

# What one rank does for all, by the words that say so.
_FOR_ALL = re.compile(r"(?i)rank|is_?main|main_?process|master|primary|chief|leader")
_NEAR = 200
_MOST_SHOWN = 3
_OF_PYTHON = ("random:", "numpy:")


@dataclass(frozen=True)
class Parting:
    """Where two processes, which should go alike, begin to go different ways.

    Attributes:
        call: the number of the backward call that the way leads to, from 1.
        line: the last one that both went through.
        ranks: the two processes.
        following: where each of them goes on; None at the end of its way.
    """

    call: int
    line: Line
    ranks: tuple[int, int]
    following: tuple[Line | None, Line | None]

    @property
    def words(self) -> str:
        """All of that as a sentence."""
        goes_on = [
            f"rank {rank} goes on at {line.site}" if line is not None else f"rank {rank} goes no further"
            for rank, line in zip(self.ranks, self.following, strict=True)
        ]
        text = f" (`{self.line.text}`)" if self.line.text else ""
        return f"The ranks take different branches at {self.line.site}{text}: {together_in_words(goes_on)}."


def parting(ranks: Sequence[RankTrace]) -> Parting | None:
    """The first place where a process goes another way than the first, but for what one of them does for all."""
    if not ranks:
        return None
    first, *others = ranks
    for number, way in enumerate(first.followed.ways):
        for other in others:
            if number >= len(other.followed.ways) or not way or not other.followed.ways[number]:
                continue
            pair = first, other
            # The last way of a run that was ended is cut off where it was ended.
            is_last = number + 1 in map(len, (first.followed.ways, other.followed.ways))
            if (found := _between(pair, way, other.followed.ways[number], number + 1, is_last=is_last)) is not None:
                return found
    return None


def parting_in_words(ranks: Sequence[RankTrace]) -> str:
    """The same as a sentence that follows another; empty if it is not known."""
    found = parting(ranks)
    return f" {found.words}" if found is not None else ""


def _between(
    ranks: tuple[RankTrace, RankTrace], way: Sequence[Line], other: Sequence[Line], call: int, *, is_last: bool
) -> Parting | None:
    here = there = 0
    while here < len(way) or there < len(other):
        mine, theirs = (part[at] if at < len(part) else None for part, at in ((way, here), (other, there)))
        if mine == theirs:
            here, there = here + 1, there + 1
            continue
        if is_last and (mine is None or theirs is None):
            return None
        line = way[here - 1] if here else None
        if line is not None and not _is_for_all(line, ranks):
            return Parting(call, line, (ranks[0].rank, ranks[1].rank), (mine, theirs))
        met = _met_again(way, here, other, there)
        if met is None:
            return None
        here, there = met
    return None


def _met_again(way: Sequence[Line], here: int, other: Sequence[Line], there: int) -> tuple[int, int] | None:
    """The nearest places from which both go alike again."""
    for far in range(1, _NEAR):
        for step in range(far + 1):
            one, two = here + step, there + far - step
            if one < len(way) and two < len(other) and way[one] == other[two]:
                return one, two
    return None


def _is_for_all(line: Line, ranks: Sequence[RankTrace]) -> bool:
    """Whether a line lets one rank do what is done once: it says so, or each rank always goes one way from it."""
    if _FOR_ALL.search(line.text):
        return True
    following = [_following(rank, line) for rank in ranks]
    return all(len(set(lines)) == 1 and len(lines) > 1 for lines in following)


def _following(rank: RankTrace, line: Line) -> list[Line]:
    return [after for way in rank.followed.ways for before, after in pairwise(way) if before == line]


# ---- lines that change something -------------------------------------------------------------------------------------


def changing_weights(ranks: Sequence[RankTrace]) -> str:
    """The lines that changed weights outside of optimizers once the training had begun, in words; empty if none."""
    return _listed(
        site
        for rank in ranks
        for changed in rank.followed.changed
        if changed.what == "weights" and changed.before
        for site in changed.sites
    )


def changing_gradients(rank: RankTrace, call: int) -> str:
    """The lines that changed gradients between a backward call and the step after it, in words; empty if none."""
    return _listed(
        site
        for changed in rank.followed.changed
        if changed.what == "gradients" and changed.before == call
        for site in changed.sites
    )


def drawing_apart(ranks: Sequence[RankTrace]) -> str:
    """The lines that drew numbers of each rank's own from generators that torch's layers do not use; empty if none."""
    found: defaultdict[str, list[set[str]]] = defaultdict(list)
    for rank in ranks:
        for drawn in rank.followed.drawn:
            found[drawn.site].append({state for state in drawn.states if state.startswith(_OF_PYTHON)})
    return _listed(
        site
        for site, states in found.items()
        if len(states) == len(ranks) and not set.intersection(*states) and all(states)
    )


def _listed(sites: Iterator[str]) -> str:
    return together_in_words([*dict.fromkeys(sites)][:_MOST_SHOWN])
