"""The numbers that several runs print in the same sentence, side by side."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amp_migrate.verify.printed import Line, is_count, last_digit, value


@dataclass(frozen=True)
class Series:
    """One number of one sentence, each time that it is printed.

    Attributes:
        line: of rank 0, where it is printed first.
        place: which of the line's numbers it is, from 0.
        right: in the original, as often as rank 0 prints it; empty where it does not print it as often.
        mine: by rank 0.
        joined: by the original on joined batches, as far as that went.
        others: by each other rank, had it not been kept silent; empty where that is not known.
        ends: for each time the numbers of backward calls made before, in the original and by rank 0; None where they
            are not known.
    """

    line: Line
    place: int
    before: Line | None
    right: tuple[str, ...]
    mine: tuple[str, ...]
    joined: tuple[str, ...]
    others: tuple[tuple[str, ...], ...]
    ends: tuple[tuple[int | None, int | None], ...]

    @property
    def are_counts(self) -> bool:
        """Whether they are whole numbers."""
        return all(map(is_count, (*self.right, *self.mine)))

    @property
    def may_count(self) -> bool:
        """Whether they are whole, however they are written, and no percentages."""
        after = self.line.sentence.split("#")[self.place + 1 :]
        is_percentage = bool(after) and after[0].lstrip().startswith("%")
        return not is_percentage and all(value(one).is_integer() for one in (*self.right, *self.mine, *self.joined))

    @property
    def agree(self) -> bool:
        """Whether all ranks are known to have the same number each time."""
        return bool(self.others) and all(other == self.mine for other in self.others)


def aligned(
    right: Sequence[Line], mine: Sequence[Line], joined: Sequence[Line], others: Sequence[Sequence[Line]]
) -> Iterator[Series]:
    """The numbers of each sentence that rank 0 prints.

    Args:
        right: what the original prints, to its end; nothing if it was stopped before.
        mine: what rank 0 prints.
        joined: what the original prints on joined batches.
        others: what each other rank would print.
    """
    of_right, of_mine, of_joined, *of_others = map(by_sentence, (right, mine, joined, *others))
    for sentence, lines in of_mine.items():
        before = of_right.get(sentence, [])
        same = before if len(before) == len(lines) else []
        silent = [other.get(sentence, []) for other in of_others]
        known = all(len(found) == len(lines) for found in silent)
        for place in range(len(lines[0].numbers)):
            yield Series(
                lines[0],
                place,
                before[0] if before else None,
                tuple(line.numbers[place] for line in same),
                tuple(line.numbers[place] for line in lines),
                tuple(line.numbers[place] for line in of_joined.get(sentence, [])[: len(lines)]),
                tuple(tuple(line.numbers[place] for line in found) for found in silent) if known else (),
                tuple((one, line.before) for one, line in zip(_befores(same, lines), lines, strict=True)),
            )


def is_quotient(series: Series, of_its_line: Sequence[Series]) -> bool:
    """Whether a number is the share or the percentage of two counts of its line, each time: it says what they say."""
    counts = [one for one in of_its_line if one.are_counts and one.place != series.place]
    return any(
        _divided(series.mine, one.mine, two.mine) and _divided(series.joined, one.joined, two.joined)
        for one, two in itertools.permutations(counts, 2)
    )


def _divided(quotients: Sequence[str], dividends: Sequence[str], divisors: Sequence[str]) -> bool:
    for quotient, *pair in zip(quotients, dividends, divisors, strict=True):
        one, two = map(value, pair)
        if not two or all(abs(value(quotient) - whole * one / two) > last_digit(quotient) for whole in (1, 100)):
            return False
    return True


def _befores(same: Sequence[Line], lines: Sequence[Line]) -> list[int | None]:
    return [line.before for line in same] or [None] * len(lines)


def by_sentence(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """The lines of each sentence, in order."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.sentence, []).append(line)
    return found
