"""The joined text of a notebook's code cells: which of its lines belong to which cell.

Above each cell stands a line that names it. It travels with the text, so every later version of the text, too, can be
taken apart into the cells that it came from.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from amp_rules.source.text import SourceFile

SUFFIX = ".ipynb"
HEADING = "# %% amp-migrate: cell "
_HEADING = re.compile(rf"^{re.escape(HEADING)}(?P<number>\d+)\n", re.MULTILINE)
_NEWLINE = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class TextCell:
    """One code cell within the joined text.

    Attributes:
        number: among all cells of the notebook, from 1.
        start: the line of the joined text on which the cell begins.
        text: the cell; it ends with a line end.
    """

    number: int
    start: int
    text: str


def joined(cells: Sequence[tuple[int, str]]) -> str:
    """Return the text of some cells, given by number; each must end with a line end."""
    return "".join(f"{HEADING}{number}\n{text}" for number, text in cells)


def cells_of(source: SourceFile) -> tuple[TextCell, ...]:
    """Return the cells of a notebook's text, and none of any other file."""
    return cells_in(source.text) if source.path.suffix == SUFFIX else ()


def cells_in(text: str) -> tuple[TextCell, ...]:
    """Return the cells of a joined text."""
    found: list[TextCell] = []
    line, counted = 1, 0
    headings = list(_HEADING.finditer(text))
    ends = [*(match.start() for match in headings[1:]), len(text)]
    for match, end in zip(headings, ends, strict=False):
        line += len(_NEWLINE.findall(text, counted, match.end()))
        counted = match.end()
        found.append(TextCell(int(match["number"]), line, text[match.end() : end]))
    return tuple(found)


def cell_at(cells: Sequence[TextCell], line: int) -> TextCell | None:
    """Return the cell that a line of the joined text belongs to."""
    index = bisect_right([cell.start for cell in cells], line) - 1
    return cells[index] if index >= 0 else None


# ---- what IPython has beside Python --------------------------------------------------------------------------

IPYTHON_MARK = "#amp-ipython:"
_MARKED = re.compile(rf"^[ \t]*(?:pass|None|None *; .*) +{re.escape(IPYTHON_MARK)}\d+")


def broken_line(text: str) -> int | None:
    """Return the first line of a joined text in which the stand-in for a line of IPython's is no longer whole."""
    for number, line in enumerate(_NEWLINE.split(text), start=1):
        if IPYTHON_MARK in line and not _MARKED.match(line):
            return number
    return None
