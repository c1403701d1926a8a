"""Which line of a notebook's joined text belongs to which cell."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from amp_rules.source.spans import Position


class CellPlace(NamedTuple):
    """Where something is, as people are told: in a cell, if the file is a notebook."""

    cell: int | None
    line: int
    column: int


@dataclass(frozen=True)
class Cells:
    """Which lines of a notebook's joined text belong to which cell.

    Attributes:
        numbers: of the code cells among all cells, from 1.
        starts: the line at which each begins.
    """

    numbers: tuple[int, ...]
    starts: tuple[int, ...]

    def locate(self, position: Position) -> CellPlace:
        """Return the place of a position of the joined text."""
        index = max(0, bisect_right(self.starts, position.line) - 1)
        return CellPlace(self.numbers[index], position.line - self.starts[index] + 1, position.column)
