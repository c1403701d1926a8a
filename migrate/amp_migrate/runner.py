"""Migrating every target once, so that one bad file never stops the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from amp_rules.options import Options
from amp_rules.program.source import (
    SourceError,
    SourceFile,
    parse_source,
    read_source,
    syntax_source_error,
)
from amp_rules.report import Report

from amp_migrate.discovery import Target
from amp_migrate.problems import Problem

_CHANGED_MEANWHILE = "changed while it was being analysed; run again"


@dataclass(frozen=True)
class Update:
    """One file as it is on disk and as it should become."""

    source: SourceFile
    text: str
    data: bytes


@dataclass
class Run:
    """What came of all targets.

    Attributes:
        reports: one for each target that could be analysed, in the order of the targets.
        updates: the files that change, each once, whatever number of entries share it.
        problems: the files that were left as they were.
    """

    reports: list[Report] = field(default_factory=list)
    updates: dict[Path, Update] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def groups(self) -> list[list[Path]]:
        """Return the changed files in sets that belong together: all of a set are written, or none."""
        groups: list[set[Path]] = []
        for report in self.reports:
            paths = {change.path.resolve() for change in report.changes} & self.updates.keys()
            if not paths:
                continue
            touching = [group for group in groups if group & paths]
            groups = [group for group in groups if group not in touching]
            groups.append(paths.union(*touching))
        return sorted(sorted(group) for group in groups)


def run_all(
    targets: Sequence[Target],
    options: Options,
    *,
    given: SourceFile | None = None,
    advance: Callable[[Path], None] = lambda path: None,
) -> Run:
    """Migrate every target; later ones see the changes made for earlier ones.

    ``given`` is the text of a target that is not read from disk. ``advance`` is called before each target.
    """
    run = Run()
    overrides: dict[Path, SourceFile] = {}
    if given is not None:
        overrides[given.path] = given
    for target in targets:
        advance(target.path)
        try:
            _run_one(target, options, run, overrides)
        except Exception as error:
            run.problems.append(Problem.from_exception(target.path, error, "the file was left as it was"))
    return run


def _run_one(target: Target, options: Options, run: Run, overrides: dict[Path, SourceFile]) -> None:
    from amp_rules import migrate

    source = overrides.get(target.path) or read_source(target.path)
    if not source.text.strip():
        if target.named:
            raise SourceError(target.path, "is empty")
        return
    try:
        report = migrate(target.path, options, overrides={**overrides, target.path: source})
    except SyntaxError as error:
        raise syntax_source_error(source, error) from error
    updates = _updates(report, run, overrides, source)
    run.reports.append(report)
    for update in updates:
        path = update.source.path
        run.updates[path] = update
        overrides[path] = SourceFile(path, update.data, update.text, update.source.encoding)


def _updates(report: Report, run: Run, overrides: dict[Path, SourceFile], entry: SourceFile) -> list[Update]:
    """Check one report's changes and join them with those that earlier entries made to the same files."""
    updates = []
    for change in report.changes:
        if change.before == change.after:
            continue
        path = change.path if change.path in overrides else change.path.resolve()
        current = entry if path == entry.path else overrides.get(path) or read_source(path)
        if current.text != change.before:
            raise SourceError(path, _CHANGED_MEANWHILE)
        data = current.encode(change.after)
        try:
            parse_source(SourceFile(path, data, change.after, current.encoding))
        except SourceError as error:
            # The user's file was sound, or it would not have got this far.
            raise RuntimeError(f"the new text of {path} does not parse ({error.message})") from error
        earlier = run.updates.get(path)
        updates.append(Update(earlier.source if earlier else current, change.after, data))
    return updates
