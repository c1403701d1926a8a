"""Bringing a finished run to where the user wants it: standard output, the files, or a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from amp_migrate import diff, vendor
from amp_migrate.problems import Problem, UserError, shown
from amp_migrate.runner import Run
from amp_migrate.terminal import print_diff
from amp_migrate.write import Replacement, replace_all


def diffs(run: Run) -> dict[Path, bytes]:
    """Return the diff of every changed file, sorted by path."""
    paths = sorted(run.updates)
    labels = diff.names(paths)
    return {
        path: diff.unified_diff(labels[path], run.updates[path].source.data, run.updates[path].data) for path in paths
    }


def print_diffs(run: Run, colour: str) -> None:
    """Write the diffs to standard output: each in its file's own bytes, or readable on a terminal."""
    for path, lines in diffs(run).items():
        print_diff(lines, run.updates[path].source.encoding, colour)


def write_in_place(run: Run, runtime: Path | None) -> tuple[dict[Path, Path], list[Problem]]:
    """Replace the changed files, and return where each was written and what prevented the others."""
    destinations = {path: path for path in run.updates}
    return _write(run, destinations, runtime, in_place=True)


def write_elsewhere(
    run: Run, output: str, paths: Sequence[Path], runtime: Path | None
) -> tuple[dict[Path, Path], list[Problem]]:
    """Write the changed files to ``output``: a file if it is called ``*.py``, else a folder.

    Raises:
        UserError: several files cannot go to one.
    """
    if not run.updates:
        return {}, []
    target = Path(output).absolute()
    if target.suffix == ".py" and not target.is_dir():
        if len(run.updates) > 1:
            names = ", ".join(shown(path) for path in sorted(run.updates))
            raise UserError(f"-o {output} is one file, but {len(run.updates)} files change: {names}")
        destinations = {path: target for path in run.updates}
    else:
        base = _common_folder(run, paths)
        destinations = {path: target / path.relative_to(base) for path in run.updates}
    for source, destination in destinations.items():
        if destination.resolve() in run.updates:
            raise UserError(f"-o {output} would overwrite {shown(source)}; use -w for that")
    return _write(run, destinations, runtime, in_place=False)


def entry_folders(run: Run, destinations: dict[Path, Path]) -> list[Path]:
    """Return the folders whose scripts import the runtime after the migration."""
    entries = [report.entry for report in run.reports if report.changes and report.entry in destinations]
    return sorted({destinations[entry].parent for entry in entries})


def _write(
    run: Run, destinations: dict[Path, Path], runtime: Path | None, *, in_place: bool
) -> tuple[dict[Path, Path], list[Problem]]:
    if runtime is not None:
        # A script beside another version of the runtime would break, so this is found out first.
        folders = entry_folders(run, destinations)
        problems = [vendor.conflict(folder) for folder in folders if vendor.state(folder, runtime) == "different"]
        if problems:
            return {}, problems
    written: dict[Path, Path] = {}
    problems = []
    for group in run.groups():
        problem = _make_folders([destinations[path].parent for path in group])
        problem = problem or replace_all(
            [
                Replacement(
                    path=destinations[path],
                    data=run.updates[path].data,
                    expected=run.updates[path].source.data if in_place else None,
                    like=path,
                )
                for path in group
            ]
        )
        if problem:
            problems.append(problem)
        else:
            written |= {path: destinations[path] for path in group}
    if runtime is not None:
        for folder in entry_folders(run, destinations):
            if any(path.parent == folder for path in written.values()) and (
                problem := vendor.copy_runtime(folder, runtime)
            ):
                problems.append(problem)
    return written, problems


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
