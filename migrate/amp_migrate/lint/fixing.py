"""Mending files: rounds of fixes until nothing is left to mend, and never a text that does not parse."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from amp_rules.lint.finding import Fix, TextEdit
from amp_rules.lint.fixes import apply_fixes
from amp_rules.source.spans import Position, Span
from amp_rules.source.text import SourceError, SourceFile, parse_source, source_from_bytes

from amp_migrate.lint.diagnostics import Diagnostic, Replacement
from amp_migrate.lint.lint_run import LintRun
from amp_migrate.lint.patches import apply_patch
from amp_migrate.lint.tracing import still_there
from amp_migrate.notebook.reading import CodeCell, Notebook, read_notebook
from amp_migrate.problems import Problem
from amp_migrate.run.discovery import NOTEBOOK

_MAX_ROUNDS = 10
_NEWLINE = re.compile(r"\r\n|\r|\n")

Relint = Callable[[Path, bytes], LintRun]


@dataclass
class MendedFile:
    """What became of one file.

    Attributes:
        before: the bytes as they were.
        after: the bytes as they should be.
        applied: how many fixes of each rule were carried out.
        left: what is found in the new text; None where it was not changed.
        problem: why a fix could not be carried out.
    """

    path: Path
    before: bytes
    after: bytes
    applied: Counter[str] = field(default_factory=Counter)
    left: LintRun | None = None
    problem: Problem | None = None


def mend(path: Path, data: bytes, diagnostics: Sequence[Diagnostic], unsafe: bool, relint: Relint) -> MendedFile:
    """Carry out the fixes of one file's findings, those that are in each other's way one round after the other.

    What a fix brings to light is reported, and nothing else is mended than what was shown: a finding that a baseline
    knows is not recognised any more once its line has changed.

    Args:
        path: the file.
        data: its content.
        diagnostics: what was found in it.
        unsafe: whether fixes that want a reader are carried out as well.
        relint: finds what is to be reported of a changed text.
    """
    mended = MendedFile(path, data, data)
    due = [item for item in diagnostics if (fix := item.finding.fix) and (unsafe or fix.safety == "safe")]
    for _ in range(_MAX_ROUNDS):
        if not due:
            break
        try:
            after, done = carried_out(path, mended.after, due)
        except Exception as error:
            mended.problem = Problem.from_exception(path, error, "its findings were left as they are")
            break
        if not done or after == mended.after:
            break
        run = relint(path, after)
        if run.problems and not (mended.left or run).diagnostics and path.suffix != NOTEBOOK:
            mended.problem = Problem(path, f"a fix would have broken it ({run.problems[0].message}); left as it was")
            break
        left = [item for item in due if not any(item is other for other in done)]
        due = still_there(left, run.diagnostics, _lines(path, mended.after), _lines(path, after))
        mended.after, mended.left = after, run
        mended.applied.update(item.finding.code for item in done)
    return mended


def _lines(path: Path, data: bytes) -> list[str]:
    """The lines that findings count."""
    source = read_notebook(data, path).source if path.suffix == NOTEBOOK else source_from_bytes(data, path)
    return _NEWLINE.split(source.text)


def carried_out(path: Path, data: bytes, due: Sequence[Diagnostic]) -> tuple[bytes, list[Diagnostic]]:
    """Carry out what goes together; return the new content and what was done."""
    # Fixes that are mere text wait for those of the syntax tree, which move their lines.
    on_tree = [item for item in due if item.finding.fix and item.finding.fix.edits]
    if path.suffix == NOTEBOOK:
        notebook = read_notebook(data, path)
        texts, done = _mended_cells(notebook, on_tree or due)
        return notebook.updated(texts), done
    source = source_from_bytes(data, path)
    text, done = _mended_text(source, on_tree or due)
    return source.encode(text), done


def _mended_text(source: SourceFile, due: Sequence[Diagnostic]) -> tuple[str, list[Diagnostic]]:
    """Carry out the fixes of one text."""
    if all(item.finding.fix and not item.finding.fix.edits for item in due):
        patched = [item for item in due if item.patch]
        text = apply_patch(source.text, [part for item in patched for part in item.patch or ()])
        return _checked(source, text), patched
    fixes = [item.finding.fix for item in due if item.finding.fix]
    try:
        text, applied = _applied(source, fixes)
    except Exception:
        # One that cannot be carried out must not hold up the others.
        fixes = [fix for fix in fixes if _is_possible(source, fix)]
        if not fixes:
            raise
        text, applied = _applied(source, fixes)
    return text, [item for item in due if item.finding.fix in applied]


def _applied(source: SourceFile, fixes: Sequence[Fix]) -> tuple[str, tuple[Fix, ...]]:
    mended = apply_fixes(source, fixes)
    return _checked(source, mended.text), mended.applied


def _is_possible(source: SourceFile, fix: Fix) -> bool:
    try:
        _applied(source, [fix])
    except Exception:
        return False
    return True


def _checked(source: SourceFile, text: str) -> str:
    """Return ``text`` if it is Python.

    Raises:
        RuntimeError: it is not.
    """
    try:
        parse_source(SourceFile(source.path, source.encode(text), text, source.encoding))
    except SourceError as error:
        raise RuntimeError(f"the fixed text does not parse ({error.message})") from error
    return text


# ---- notebooks -----------------------------------------------------------------------------------------------


def _mended_cells(notebook: Notebook, due: Sequence[Diagnostic]) -> tuple[dict[int, str], list[Diagnostic]]:
    """Carry out fixes cell by cell; return the new texts by number of the cell."""
    pythons = {cell.number: cell.python for cell in notebook.cells}
    starts = dict(zip(notebook.places.numbers, notebook.places.starts, strict=True))
    done: list[Diagnostic] = []
    imports: list[tuple[int, TextEdit]] = []
    for number, items in _by_cell(due).items():
        local = [moved for item in items if (moved := _in_cell(item, number, starts[number])) is not None]
        if not local:
            continue
        text, applied = _mended_text(_cell_source(notebook, pythons[number]), [item for item, _ in local])
        pythons[number] = text
        chosen = {id(item) for item in applied}
        for (item, elsewhere), original in zip(local, items, strict=False):
            if id(item) in chosen:
                done.append(original)
                imports += [(number, edit) for edit in elsewhere]
    for number, edit in imports:
        home = _home(notebook.cells, number)
        fix = Fix("", "safe", (edit,))
        pythons[home], _ = _applied(_cell_source(notebook, pythons[home]), [fix])
    changed = [cell for cell in notebook.cells if pythons[cell.number] != cell.python]
    return {cell.number: _as_before(cell, cell.restored(pythons[cell.number])) for cell in changed}, done


def _by_cell(due: Iterable[Diagnostic]) -> dict[int, list[Diagnostic]]:
    found: dict[int, list[Diagnostic]] = {}
    for item in due:
        if (cell := item.start.cell) is not None:
            found.setdefault(cell, []).append(item)
    return found


def _in_cell(item: Diagnostic, number: int, start: int) -> tuple[Diagnostic, tuple[TextEdit, ...]] | None:
    """Return a finding with the edits of its fix in lines of its cell, and its imports, which may go to another one.

    None if it is about several cells.
    """
    fix = item.finding.fix
    assert fix is not None
    here = [edit for edit in fix.edits if edit.kind != "import"]
    if any(item.locate(edit.span.start).cell != number for edit in here):
        return None
    edits = tuple(replace(edit, span=_moved(edit.span, start)) for edit in here)
    patch = tuple(Replacement(_moved(part.span, start), part.text) for part in item.patch or ())
    moved = replace(item, finding=replace(item.finding, fix=replace(fix, edits=edits)), patch=patch)
    return moved, tuple(edit for edit in fix.edits if edit.kind == "import")


def _moved(span: Span, start: int) -> Span:
    return Span(
        Position(span.start.line - start + 1, span.start.column), Position(span.end.line - start + 1, span.end.column)
    )


def _home(cells: Sequence[CodeCell], number: int) -> int:
    """Return the cell for an import that is needed in cell ``number``: the first that imports torch."""
    for cell in cells:
        if cell.number <= number and not cell.skipped and "import torch" in cell.python:
            return cell.number
    return number


def _cell_source(notebook: Notebook, python: str) -> SourceFile:
    return SourceFile(notebook.path, python.encode("utf-8", "surrogatepass"), python, "utf-8")


def _as_before(cell: CodeCell, text: str) -> str:
    """Return a cell's new text without a line end where it had none."""
    return text if cell.text.endswith("\n") else text.removesuffix("\n")
