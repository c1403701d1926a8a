"""A finding as it is stored and shown: with its lines of source, and its place in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amp_rules.lint.finding import Finding, Fix, TextEdit
from amp_rules.source.spans import Position, Span

from amp_migrate.notebook.cells import CellPlace, Cells
from amp_migrate.problems import Problem, place


@dataclass(frozen=True)
class Replacement:
    """A piece of a fix as text: what stands at ``span`` becomes ``text``."""

    span: Span
    text: str


@dataclass(frozen=True)
class Diagnostic:
    """One finding with what is needed to print it without reading its file again.

    Attributes:
        finding: what the analysis says; in a notebook its lines are those of the joined text.
        lines: the source, by line number: of the finding, one line more on either side, and of its patch.
        patch: the fix as replacements of text, where it can be told without rewriting the file.
        cells: of a notebook.
    """

    finding: Finding
    lines: Mapping[int, str] = field(default_factory=dict)
    patch: tuple[Replacement, ...] | None = None
    cells: Cells | None = None

    @property
    def start(self) -> CellPlace:
        """Where the finding begins."""
        return self.locate(self.finding.span.start)

    @property
    def end(self) -> CellPlace:
        """Where the finding ends."""
        return self.locate(self.finding.span.end)

    @property
    def where(self) -> str:
        """``path:line:column``, with the cell in a notebook."""
        at = self.start
        return place(self.finding.path, at.line, at.column, cell=at.cell)

    def locate(self, position: Position) -> CellPlace:
        """Return where a position of the analysed text is."""
        if self.cells is not None:
            return self.cells.locate(position)
        return CellPlace(None, position.line, position.column)

    def byte_column(self, position: Position) -> int:
        """Return the column of a position counted in bytes of UTF-8."""
        before = self.lines.get(position.line, "")[: position.column - 1]
        return len(before.encode("utf-8", "surrogatepass")) + position.column - len(before)

    @property
    def line_text(self) -> str:
        """The line on which the finding begins, with blanks made one and none at the ends."""
        return " ".join(self.lines.get(self.finding.span.start.line, "").split())


@dataclass(frozen=True)
class FileResult:
    """What one file gave.

    Attributes:
        digest: the hash of what was read; empty if nothing was.
        dependencies: other files that the result rests on, with their hashes; None for one that was not there.
        lasting: whether another run would find the same; not so for a file that took too long.
    """

    path: Path
    diagnostics: tuple[Diagnostic, ...] = ()
    problem: Problem | None = None
    digest: str = ""
    dependencies: tuple[tuple[str, str | None], ...] = ()
    lasting: bool = True


# ---- plain tuples, for the cache and between processes -------------------------------------------------------


def to_plain(result: FileResult) -> tuple[Any, ...]:
    """Return the findings and the problem of a result as nested tuples, without its path."""
    cells = next((item.cells for item in result.diagnostics if item.cells), None)
    problem = result.problem
    return (
        tuple(_plain(item) for item in result.diagnostics),
        (cells.numbers, cells.starts) if cells else None,
        (problem.message, problem.line, problem.column, problem.detail, problem.cell) if problem else None,
    )


def from_plain(path: Path, mode: str, plain: Sequence[Any]) -> FileResult:
    """Return what :func:`to_plain` was given."""
    rows, cells, problem = plain
    where = Cells(*map(tuple, cells)) if cells else None
    return FileResult(
        path,
        tuple(_diagnostic(path, mode, row, where) for row in rows),
        Problem(path, *problem) if problem else None,
    )


def _plain(item: Diagnostic) -> tuple[Any, ...]:
    finding = item.finding
    fix = None
    if finding.fix:
        edits = tuple((edit.kind, _numbers(edit.span), edit.text) for edit in finding.fix.edits)
        fix = (finding.fix.title, finding.fix.safety, edits)
    patch = None if item.patch is None else tuple((_numbers(part.span), part.text) for part in item.patch)
    words = (finding.code, finding.name, finding.severity, finding.message, finding.advice)
    return (_numbers(finding.span), words, fix, patch, tuple(item.lines.items()))


def _diagnostic(path: Path, mode: str, row: Sequence[Any], cells: Cells | None) -> Diagnostic:
    span, (code, name, severity, message, advice), fix, patch, lines = row
    mended = None
    if fix is not None:
        title, safety, edits = fix
        mended = Fix(title, safety, tuple(TextEdit(kind, _span(numbers), text) for kind, numbers, text in edits))
    finding = Finding(path, _span(span), code, name, severity, message, mode, mended, advice)
    parts = None if patch is None else tuple(Replacement(_span(numbers), text) for numbers, text in patch)
    return Diagnostic(finding, dict(lines), parts, cells)


def _numbers(span: Span) -> tuple[int, int, int, int]:
    return (span.start.line, span.start.column, span.end.line, span.end.column)


def _span(numbers: Sequence[int]) -> Span:
    line, column, end_line, end_column = numbers
    return Span(Position(line, column), Position(end_line, end_column))
