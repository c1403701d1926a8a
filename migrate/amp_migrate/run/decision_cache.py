"""What an earlier run decided.

One file for each set of options; an entry holds if all files that it rests on have the same content, and if those that
were looked for in vain are still not there.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from amp_rules.plan.options import Options
from amp_rules.plan.report import Edit, FileChange, Note, Refusal, Report
from amp_rules.source.project import is_listed
from amp_rules.source.reach import Reach
from amp_rules.source.spans import Position, Span

from amp_migrate.run.deciding import Decided
from amp_migrate.run.discovery import NOTEBOOK
from amp_migrate.run.store import FileStore


class DecisionCache:
    """The results of earlier runs with the same options.

    Args:
        folder: where they are; None for a memory of nothing.
        options: what the migration is asked for.
        root: the folder of the project, which has a file of its own.
    """

    def __init__(self, folder: Path | None, options: Options, root: Path) -> None:
        self._store = FileStore(folder)
        self._entries = self._store.entries(self._store.name_of(sorted(asdict(options).items()), str(root)))
        self._exists: dict[str, bool] = {}

    def lookup(self, path: Path) -> Decided | None:
        """Return what was decided on a script if that still holds."""
        entry = self._entries.get(str(path))
        if entry is None:
            return None
        try:
            if any(self._store.digest(name) != known for name, known in entry["files"]):
                return None
            if any(self._store.digest(name) != known for name, known in entry["settings"]):
                return None
            if any(self._is_file(name) != known for name, known in entry["probes"]):
                return None
            if any(_names_in(folder) != known for folder, known in entry["folders"]):
                return None
            return Decided(path, _report(entry))
        except (AttributeError, KeyError, OSError, TypeError, UnicodeError, ValueError):
            return None

    def _is_file(self, name: str) -> bool:
        if name not in self._exists:
            self._exists[name] = os.path.isfile(name)
        return self._exists[name]

    def store(self, result: Decided) -> None:
        """Remember a result."""
        report = result.report
        if self._store.folder is None or not result.lasting or report is None or report.reach is None:
            return
        if result.path.suffix == NOTEBOOK:
            # Its text is no file's text; there are never many of them.
            return
        self._entries.keep(result.path, _plain(report, report.reach, self._store))

    def save(self) -> None:
        """Write what is new."""
        self._entries.save()


def _names_in(folder: str) -> list[str]:
    return sorted(filter(is_listed, os.listdir(folder)))


def _plain(report: Report, reach: Reach, store: FileStore) -> dict[str, Any]:
    return {
        "entry": str(report.entry),
        "precision": report.precision,
        "distribution": report.distribution,
        "changes": [(str(change.path), change.before, change.after) for change in report.changes],
        "edits": [
            (str(edit.path), _plain_span(edit.span), edit.code, edit.name, edit.message, edit.cell)
            for edit in report.edits
        ],
        "refusals": [
            (
                str(item.path),
                _plain_span(item.span) if item.span else None,
                item.code,
                item.name,
                item.unit,
                item.message,
                item.recipe,
                item.cell,
            )
            for item in report.refusals
        ],
        "notes": [
            (str(item.path), _plain_span(item.span) if item.span else None, item.code, item.name, item.text, item.cell)
            for item in report.notes
        ],
        "launched": report.launched,
        "in_full": report.in_full,
        "level_if": report.level_if,
        "asks": report.asks,
        "reads_level": report.reads_level,
        # As it was read: another program may have changed it since, and nothing is known of the new text.
        "files": [(str(path), reach.read.get(path) or store.digest(str(path))) for path in reach.files],
        "settings": [(str(path), store.digest(str(path))) for path in reach.settings],
        "probes": [(str(path), known) for path, known in reach.probes],
        "folders": [(str(folder), names) for folder, names in reach.folders],
        "functions": {str(path): ranges for path, ranges in reach.functions.items()},
    }


def _report(entry: dict[str, Any]) -> Report:
    reach = Reach(
        tuple(Path(name) for name, _ in entry["files"]),
        tuple((Path(name), known) for name, known in entry["probes"]),
        {Path(name): tuple((first, last) for first, last in ranges) for name, ranges in entry["functions"].items()},
        tuple((Path(name), tuple(names)) for name, names in entry["folders"]),
        tuple(Path(name) for name, _ in entry["settings"]),
        {Path(name): digest for name, digest in entry["files"] if digest is not None},
    )
    return Report(
        Path(entry["entry"]),
        entry["precision"],
        entry["distribution"],
        tuple(FileChange(Path(path), before, after) for path, before, after in entry["changes"]),
        tuple(
            Edit(Path(path), _span(span), code, name, message, cell)
            for path, span, code, name, message, cell in entry["edits"]
        ),
        tuple(
            Refusal(Path(path), _span(span) if span else None, code, name, unit, message, recipe, cell)
            for path, span, code, name, unit, message, recipe, cell in entry["refusals"]
        ),
        tuple(
            Note(Path(path), _span(span) if span else None, code, name, text, cell)
            for path, span, code, name, text, cell in entry["notes"]
        ),
        entry["launched"],
        entry["in_full"],
        entry["level_if"],
        entry["asks"],
        entry["reads_level"],
        reach,
    )


def _plain_span(span: Span) -> list[int]:
    return [span.start.line, span.start.column, span.end.line, span.end.column]


def _span(numbers: list[int]) -> Span:
    line, column, end_line, end_column = numbers
    return Span(Position(line, column), Position(end_line, end_column))
