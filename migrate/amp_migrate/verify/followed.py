"""What is known of a process whose lines the recorder followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Line:
    """One line of the project.

    Attributes:
        site: ``file:line``.
        text: what stands there, without the space around it.
    """

    site: str
    text: str = ""


@dataclass(frozen=True)
class Changed:
    """Lines that changed weights outside of an optimizer, or gradients between a backward call and a step.

    Attributes:
        what: ``"weights"`` or ``"gradients"``.
        sites: the lines, ``file:line``.
        before: number of backward calls made before.
    """

    what: str
    sites: tuple[str, ...]
    before: int = 0


@dataclass(frozen=True)
class Drawn:
    """A line that drew random numbers, the first time that it did.

    Attributes:
        site: the line, ``file:line``.
        states: which generators, and a digest of the state of each after that: ``"random:0a1b"``.
        before: number of backward calls made before.
    """

    site: str
    states: tuple[str, ...]
    before: int = 0


@dataclass(frozen=True)
class Followed:
    """All of it; empty where lines were not followed.

    Attributes:
        ways: the lines of the project that led to each backward call from the one before, as far as they were followed,
            and those after the last call, as if they led to one more.
        changed: what lines changed that no optimizer and no scaler did.
        drawn: the lines that drew random numbers.
        reached: of the first backward calls, a digest of which parameters the loss leads back to, and their number.
        carried: the lines at which a module is given what it gave for an earlier batch.
        unordered: the lines that take the order of a set, which is another one in each process.
    """

    ways: tuple[tuple[Line, ...], ...] = ()
    changed: tuple[Changed, ...] = ()
    drawn: tuple[Drawn, ...] = ()
    reached: tuple[tuple[str, int], ...] = ()
    carried: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()


def followed(lines: Sequence[dict[str, Any]]) -> Followed:
    """Read it from all that a process wrote."""
    unordered = next((found["unordered"] for found in lines if "unordered" in found), ())
    return Followed(
        ways=_ways(lines),
        changed=tuple(map(_changed, (facts for facts in lines if "changed" in facts))),
        drawn=tuple(map(_drawn, (facts for facts in lines if "drawn" in facts))),
        reached=tuple((facts["reached"], facts["parameters_reached"]) for facts in lines if "reached" in facts),
        carried=tuple(facts["carried"] for facts in lines if "carried" in facts),
        unordered=tuple(unordered),
    )


def _ways(lines: Sequence[dict[str, Any]]) -> tuple[tuple[Line, ...], ...]:
    """The way to each backward call; each was written in full but once."""
    places: list[Line] = []
    known: dict[int, tuple[Line, ...]] = {}
    result: list[tuple[Line, ...]] = []
    for facts in lines:
        if "way" not in facts:
            continue
        places += [Line(*place) for place in facts.get("new_places", ())]
        if "lines" in facts:
            # A part of what was written may be lost.
            known[facts["way"]] = tuple(places[number] for number in facts["lines"] if number < len(places))
        result += [()] * (facts["leads_to"] - len(result))
        result[facts["leads_to"] - 1] = known.get(facts["way"], ())
    return tuple(result)


def _changed(facts: dict[str, Any]) -> Changed:
    return Changed(facts["changed"], tuple(facts["places"]), facts["before"])


def _drawn(facts: dict[str, Any]) -> Drawn:
    return Drawn(facts["drawn"], tuple(facts["states"]), facts["before"])
