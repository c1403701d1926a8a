"""Places in a text as people count them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Position:
    """A place in a text: ``line`` and ``column`` both count from 1, columns in code points."""

    line: int
    column: int


@dataclass(frozen=True, order=True)
class Span:
    """A half-open range of a text."""

    start: Position
    end: Position
