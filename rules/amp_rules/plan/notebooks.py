"""What is different when the entry is a notebook: one process, and places that are told by the cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from amp_rules.plan.options import Options
from amp_rules.plan.report import Edit, Note, Refusal, Report
from amp_rules.plan.rule import Rule
from amp_rules.source.notebook import IPYTHON_MARK, SUFFIX, TextCell, broken_line, cell_at, cells_in, cells_of
from amp_rules.source.spans import Position, Span
from amp_rules.source.text import SourceFile

MAGIC = Rule("AMP188", "ipython-line", "A line of IPython's would be taken apart.", "precision")

_Told = TypeVar("_Told", Refusal, Note)


def migrate_notebook(source: SourceFile, options: Options, migrate: Callable[[Options], Report]) -> Report:
    """Return the report for a notebook.

    Args:
        source: the joined text of its cells.
        options: what was asked for.
        migrate: migrates it as if it were a script.
    """
    report = _whole(migrate(replace(options, ddp=False)))
    if options.ddp:
        report = replace(report, distribution="absent" if report.precision == "absent" else "not applicable")
    cells = cells_of(source)
    return replace(
        report,
        edits=tuple(_edit(edit, source.path, cells) for edit in report.edits),
        refusals=tuple(_in_cell(item, source.path, cells) for item in report.refusals),
        notes=tuple(_in_cell(item, source.path, cells) for item in report.notes),
    )


def is_notebook(path: Path) -> bool:
    """Whether a file is a notebook by its name."""
    return path.suffix == SUFFIX


def _whole(report: Report) -> Report:
    """The report, unless what it does to a line of IPython's could not be put back into the notebook."""
    for change in report.changes:
        line = broken_line(change.after) if is_notebook(change.path) else None
        if line is not None:
            refusal = Refusal(
                change.path,
                _place_of_mark(change.before, change.after, line),
                MAGIC.code,
                MAGIC.name,
                MAGIC.unit,
                "the step is run by a line that is IPython's, such as `%time`, and would have to be taken apart",
                "write the statement without the magic, then migrate again",
            )
            return replace(report, precision="declined", changes=(), edits=(), refusals=(*report.refusals, refusal))
    return report


def _place_of_mark(before: str, after: str, line: int) -> Span | None:
    """Where the line stood of which line ``line`` of the changed text is left."""
    changed = cell_at(cells_in(after), line)
    mark = IPYTHON_MARK + after.splitlines()[line - 1].partition(IPYTHON_MARK)[2]
    for cell in cells_in(before):
        for number, row in enumerate(cell.text.splitlines(), start=cell.start):
            if changed is not None and cell.number == changed.number and row.endswith(mark):
                return Span(Position(number, 1), Position(number, len(row) + 1))
    return None


def _edit(edit: Edit, path: Path, cells: Sequence[TextCell]) -> Edit:
    cell = cell_at(cells, edit.span.start.line) if edit.path == path else None
    return edit if cell is None else replace(edit, span=_within(edit.span, cell), cell=cell.number)


def _in_cell(item: _Told, path: Path, cells: Sequence[TextCell]) -> _Told:
    cell = cell_at(cells, item.span.start.line) if item.path == path and item.span else None
    return item if cell is None or item.span is None else replace(item, span=_within(item.span, cell), cell=cell.number)


def _within(span: Span, cell: TextCell) -> Span:
    """Return the place with lines counted within the cell."""
    above = cell.start - 1
    return Span(Position(span.start.line - above, span.start.column), Position(span.end.line - above, span.end.column))
