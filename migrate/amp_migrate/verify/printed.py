"""What a script prints, as sentences with numbers in them, so that two runs can be compared.

What no two runs have in common is left out (see :mod:`amp_migrate.verify.left_out`), and so are progress bars. Of a
line that was written over, with carriage returns, its last state counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from amp_migrate.verify.left_out import NUMBER, OMITTED, steady
from amp_migrate.verify.traces import RankTrace, Said, Trace

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9])")
_BAR = re.compile(r"\d+%\s?\||(?:it|s)/(?:s|it)[\],]|\?(?:it|batch|step)\w*/s|[━█▏▎▍▌▋▊▉]{2}|\[[=>#.\- ]{8,}\]")
# The option that --switch adds is None in every run here: the arguments that a script shows have one more.
_SWITCH = re.compile(
    r"""(?P<sep>,\s)(?P<q>["']?)amp(?P=q)(?:=|:\s)(?:None|null)(?=[,)}])"""
    r"""|(?<=[({])(?P<r>["']?)amp(?P=r)(?:=|:\s)(?:None|null),\s"""
)
_SWITCH_ALONE = re.compile(r"""\W*amp\W+(?:None|null)\W*""")


@dataclass(frozen=True)
class Line:
    """One line.

    Attributes:
        raw: as it was printed.
        sentence: its text, with ``#`` for numbers, and without what no two runs have in common.
        numbers: the numbers, as they were written.
        site: where the script writes it; empty where that is not known.
        before: number of backward calls made before; None where that is not known.
    """

    raw: str
    sentence: str
    numbers: tuple[str, ...] = ()
    site: str = ""
    before: int | None = None


def lines(text: str, said: Sequence[Said] = ()) -> list[Line]:
    """The lines of an output that say something in every run: no progress bars, no empty ones, none that Apex says.

    ``said`` are the same lines as the recorder saw them go by; what a script writes past Python is not among them.
    """
    raws = text.split("\n")
    # The last line may have no end, and then the recorder has it too.
    known = list(said) if len(raws) - (not raws[-1]) == len(said) else []
    found = []
    for number, raw in enumerate(raws):
        one = line(raw)
        if one is None or (number < len(known) and known[number].by_apex):
            continue
        if number < len(known):
            one = replace(one, site=known[number].site, before=known[number].before)
        found.append(one)
    return found


def printed_by(trace: Trace, rank: int = 0) -> list[Line]:
    """What one process of a run printed."""
    said = trace.ranks[rank].said if rank < len(trace.ranks) else ()
    text = trace.printed[rank] if rank < len(trace.printed) else ""
    return lines(text, [one for one in said if not one.silent])


def kept_back_by(rank: RankTrace) -> list[Line]:
    """What one process would have printed, had it not been kept silent."""
    silent = [one for one in rank.said if one.silent]
    return lines("\n".join(one.text for one in silent), silent)


def line(raw: str) -> Line | None:
    """One line; None for a progress bar or an empty one."""
    kept = _ESCAPE.sub("", raw.rstrip("\r")).rpartition("\r")[2].rstrip()
    if not kept.strip() or _BAR.search(kept) or _SWITCH_ALONE.fullmatch(kept):
        return None
    kept = steady(_SWITCH.sub("", kept))
    numbers = tuple(match[0] for match in NUMBER.finditer(kept))
    # Columns are as wide as their numbers.
    sentence = re.sub(r"\s+", " ", NUMBER.sub("#", kept)).strip()
    return Line(raw.strip(), sentence, numbers) if sentence.strip(f"{OMITTED} ") else None


def value(number: str) -> float:
    """The number that is written."""
    return float(number.replace(",", ""))


def is_count(number: str) -> bool:
    """Whether it is written as a whole number."""
    return number.replace(",", "").lstrip("+-").isdigit()


def last_digit(number: str) -> float:
    """What one more in its last digit would be worth: numbers are rounded to that."""
    mantissa, _, exponent = number.replace(",", "").lower().partition("e")
    digits = len(mantissa.partition(".")[2]) if mantissa[-1:].isdigit() or mantissa.endswith(".") else 0
    try:
        return float(10.0 ** (int(exponent or 0) - digits))
    except (OverflowError, ValueError):
        return 0.0


@dataclass(frozen=True)
class Difference:
    """The first line that differs.

    Attributes:
        number: which of the lines it is, from 0.
        right: the line of the run that is right; None where it has ended.
        other: that of the other run.
        place: which of the numbers differs first, from 0; None where the sentence does.
    """

    number: int
    right: Line | None
    other: Line | None
    place: int | None = None


Unsteady = frozenset[tuple[str, int]]
"""Numbers that two runs of the same script print differently: the sentence and the place."""


def first_difference(
    right: Sequence[Line], other: Sequence[Line], unsteady: Unsteady = frozenset(), tolerance: float = 0.0
) -> Difference | None:
    """Where two outputs differ first.

    Args:
        right: the output that gives the lines.
        other: the one that has to repeat them.
        unsteady: numbers that need not be the same.
        tolerance: how far numbers that are no counts may be apart, relative to the larger one.
    """
    for number, (one, two) in enumerate(zip(right, other, strict=False)):
        if one.sentence != two.sentence:
            return Difference(number, one, two)
        for place, (first, second) in enumerate(zip(one.numbers, two.numbers, strict=True)):
            if (one.sentence, place) not in unsteady and not _agree(first, second, tolerance):
                return Difference(number, one, two, place)
    shorter = min(len(right), len(other))
    if len(right) == len(other):
        return None
    if shorter < len(right):
        return Difference(shorter, right[shorter], None)
    return Difference(shorter, None, other[shorter])


def unsteady(first: Sequence[Line], second: Sequence[Line]) -> Unsteady:
    """The numbers that two runs of one script do not share, as far as their sentences are the same."""
    found = set()
    for one, two in zip(first, second, strict=False):
        if one.sentence != two.sentence:
            break
        pairs = zip(one.numbers, two.numbers, strict=True)
        found |= {(one.sentence, place) for place, (number, again) in enumerate(pairs) if number != again}
    return frozenset(found)


def steady_sentences(first: Sequence[Line], second: Sequence[Line]) -> frozenset[str]:
    """The sentences that both runs of one script printed at the same place."""
    pairs = list(zip(first, second, strict=False))
    end = next((number for number, (one, two) in enumerate(pairs) if one.sentence != two.sentence), len(pairs))
    return frozenset(one.sentence for one, _ in pairs[:end])


def _agree(first: str, second: str, tolerance: float) -> bool:
    if first == second:
        return True
    if not tolerance or (is_count(first) and is_count(second)):
        return False
    one, two = value(first), value(second)
    if one != one or two != two:
        return one != one and two != two
    return abs(one - two) <= tolerance * max(abs(one), abs(two)) + max(last_digit(first), last_digit(second))
