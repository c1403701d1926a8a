"""Bringing a finished run to where the user wants it: standard output, the files, or a folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from amp_rules.plan.report import Report
from amp_rules.source.text import SourceFile

from amp_migrate.git import IGNORED, uncommitted
from amp_migrate.notebook.source import NotebookSource
from amp_migrate.out import diff
from amp_migrate.out.terminal import plural, print_bytes, print_diff
from amp_migrate.problems import Problem, UserError, shown
from amp_migrate.projects import project_folder
from amp_migrate.run.discovery import NOTEBOOK
from amp_migrate.run.migration import Run
from amp_migrate.settings.migration import Settings
from amp_migrate.vendoring.beside import Beside, copies_beside
from amp_migrate.vendoring.copies import Copy
from amp_migrate.write.replacing import Replacement, replace_all
from amp_migrate.write.transaction import copy_beside, undo_command, write_project

# More files of one project are only counted.
_LISTED = 20


@dataclass
class Delivery:
    """What came of writing.

    Attributes:
        files: where each file that was written went.
        copies: the copies of the runtime that were written.
        problems: what prevented the others.
        notes: what else there is to be said.
    """

    files: dict[Path, Path] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def diffs(run: Run) -> dict[Path, bytes]:
    """Return the diff of every changed file, sorted by path."""
    paths = sorted(run.updates)
    labels = diff.names(paths)
    return {
        path: diff.unified_diff(labels[path], run.updates[path].source.data, run.updates[path].data) for path in paths
    }


def cell_diffs(run: Run) -> dict[Path, dict[int, bytes]]:
    """Return the diffs of the changed cells of every changed notebook, by number."""
    paths = sorted(run.updates)
    labels = diff.names(paths)
    found: dict[Path, dict[int, bytes]] = {}
    for path in paths:
        update = run.updates[path]
        if isinstance(update.source, NotebookSource):
            cells = update.source.changed_cells(update.text)
            found[path] = {number: diff.cell_diff(labels[path], number, old, new) for number, old, new in cells}
    return found


def print_diffs(run: Run, colour: str, *, by_cell: bool = False) -> None:
    """Write the diffs to standard output: each in its file's own bytes, or readable on a terminal.

    Notebooks come cell by cell on a terminal, and elsewhere with ``by_cell``.
    """
    cells = cell_diffs(run) if by_cell or sys.stdout.isatty() else {}
    for path, lines in diffs(run).items():
        for part in cells[path].values() if path in cells else [lines]:
            print_diff(part, run.updates[path].source.encoding, colour)


def print_document(run: Run, output_format: str, given: SourceFile | None) -> None:
    """Write the whole run to standard output: as JSON, or in a format for review tools."""
    from amp_migrate.out import migration_json, migration_remarks

    if output_format == "json":
        texts = {
            path: lines.decode(run.updates[path].source.encoding.removesuffix("-sig"), "replace")
            for path, lines in diffs(run).items()
        }
        document = migration_json.render(run, texts, cell_diffs(run))
    else:
        document = "".join(migration_remarks.render(run, output_format, given))
    print_bytes(document.encode("utf-8", "backslashreplace"))


def write_in_place(run: Run, vendored: Beside, *, allow_dirty: bool) -> Delivery:
    """Replace the changed files, with the copies of the runtime: for each project all, or none and the reason why.

    Files that git could not give back prevent it, unless ``allow_dirty``.
    """
    written = Delivery(problems=vendored.problems)
    if written.problems:
        return written
    state = None if allow_dirty else uncommitted(list(run.updates))
    for root, reason in state.unknown.items() if state else ():
        written.notes.append(f"git cannot tell whether {shown(root)} holds uncommitted changes: {reason}")
    for group in run.groups():
        dirty = {path: words for path, words in state.files.items() if path in group} if state else {}
        if dirty:
            written.problems += _dirty_problems(dirty)
            continue
        items = [Replacement(path, run.updates[path].data, run.updates[path].source.data, path) for path in group]
        files = {path: path for path in group}
        copies = vendored.of(group)
        if problem := write_project(items, copies, run.inputs(group)):
            written.problems.append(problem)
        else:
            written.files |= files
            written.copies += [copy for copy in copies if copy.changes]
    for copy in vendored.copies:
        # Of scripts that were migrated before.
        if copy.changes and copy not in vendored.of(run.updates):
            if problem := write_project([], [copy]):
                written.problems.append(problem)
            else:
                written.copies.append(copy)
    roots = sorted({project_folder(path) for path in (*written.files, *(copy.path for copy in written.copies))})
    written.notes += [f"`{undo_command(root)}` puts the files back" for root in roots]
    if any(report.refusals or report.notes for report in run.reports if _changes_any(report, written)):
        written.notes.append("the line numbers below are those before the edits")
    return written


def _changes_any(report: Report, written: Delivery) -> bool:
    return any(change.path.resolve() in written.files for change in report.changes)


def write_elsewhere(run: Run, output: str, paths: Sequence[Path], settings: Settings) -> Delivery:
    """Write the changed files to ``output``: a file if it is called ``*.py`` or ``*.ipynb``, else a folder.

    Raises:
        UserError: several files cannot go to one.
    """
    if not run.updates:
        return Delivery()
    target = Path(output).absolute()
    if target.suffix in (".py", NOTEBOOK) and not target.is_dir():
        if len(run.updates) > 1:
            names = ", ".join(shown(path) for path in sorted(run.updates))
            raise UserError(f"-o {output} is one file, but {len(run.updates)} files change: {names}")
        destinations = {path: target for path in run.updates}
        if any((path.suffix == NOTEBOOK) is not (target.suffix == NOTEBOOK) for path in run.updates):
            raise UserError(f"-o {output}: a notebook stays a notebook (.ipynb), and a script a script (.py)")
    else:
        base = _common_folder(run, paths)
        destinations = {path: target / path.relative_to(base) for path in run.updates}
    for source, destination in destinations.items():
        if destination.resolve() in run.updates:
            raise UserError(f"-o {output} would overwrite {shown(source)}; use -w for that")
    vendored = vendored_beside(run, destinations, settings, in_place=False)
    return _write_copies(run, destinations, vendored)


def vendored_beside(run: Run, destinations: dict[Path, Path], settings: Settings, *, in_place: bool) -> Beside:
    """Find out what the copies of the runtime become; none without ``--vendor``.

    Raises:
        UserError: the runtime is not installed.
    """
    if not settings.vendor:
        return Beside()
    return copies_beside(run, destinations, settings.options.opt_level, in_place=in_place)


def _write_copies(run: Run, destinations: dict[Path, Path], vendored: Beside) -> Delivery:
    written = Delivery(problems=vendored.problems)
    if written.problems:
        return written
    for group in run.groups():
        files = {path: destinations[path] for path in group}
        problem = _make_folders([path.parent for path in files.values()])
        copies = vendored.of(files.values())
        problem = problem or copy_beside(copies)
        problem = problem or replace_all(
            [Replacement(destination, run.updates[path].data, None, path) for path, destination in files.items()]
        )
        if problem:
            written.problems.append(problem)
        else:
            written.files |= files
            written.copies += [copy for copy in copies if copy.changes]
    return written


def _dirty_problems(dirty: dict[Path, str]) -> list[Problem]:
    problems = [
        Problem(path, f"{words}; nothing was written: {_advice(words)}")
        for path, words in sorted(dirty.items())[:_LISTED]
    ]
    if len(dirty) > _LISTED:
        root = project_folder(min(dirty))
        problems.append(Problem(root, f"{plural(len(dirty) - _LISTED, 'more file')} with uncommitted changes"))
    return problems


def _advice(words: str) -> str:
    return "add --allow-dirty" if words == IGNORED else "commit or stash first, or add --allow-dirty"


def _make_folders(folders: Sequence[Path]) -> Problem | None:
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return Problem(folder, f"cannot be made: {error.strerror or error}")
    return None


def _common_folder(run: Run, paths: Sequence[Path]) -> Path:
    folders = [path.resolve() if path.is_dir() else path.resolve().parent for path in paths]
    return Path(os.path.commonpath([*folders, *(path.parent for path in run.updates)]))
