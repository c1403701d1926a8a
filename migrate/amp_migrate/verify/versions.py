"""The two versions of a script that are compared: migrated just now, given by the user, or from git."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from amp_rules.plan.options import Options

from amp_migrate.git import GitError, changed_since, git_root
from amp_migrate.problems import NothingShownError, Problem, UserError, place, shown
from amp_migrate.run.discovery import NOTEBOOK

if TYPE_CHECKING:
    from amp_rules.plan.report import Report

    from amp_migrate.run.migration import Run
    from amp_migrate.verify.copies import CopiedProject

_APEX = "AMP4"
_MAX_BYTES = 20_000_000


@dataclass(frozen=True)
class Versions:
    """What the original and the migrated version have in place of the files of the project.

    Attributes:
        original: None for a file that it does not have.
        migrated: the same; both are empty where the project's own files are meant.
        precision: see :class:`amp_migrate.verify.plan.Asked`.
        distribution: see there.
        uses_apex: whether the original is written for NVIDIA Apex.
        notes: what a reader has to know.
        run: the migration, for a report; None where the migrated version was given.
        options: what was asked of the migration.
        modules: the files that the script imports, as far as they are known.
    """

    original: Mapping[Path, bytes | None] = field(default_factory=dict)
    migrated: Mapping[Path, bytes | None] = field(default_factory=dict)
    precision: str = "unknown"
    distribution: str = "unknown"
    uses_apex: bool = False
    notes: tuple[str, ...] = ()
    run: Run | None = None
    options: Options = field(default_factory=Options)
    modules: tuple[Path, ...] = ()


def migrated_now(script: Path, options: Options) -> Versions:
    """Migrate the script, in memory.

    Raises:
        UserError: it cannot be read.
        NothingShownError: nothing changes, for the reasons given.
    """
    from amp_migrate.run import discovery
    from amp_migrate.run.deciding import MigrationJob
    from amp_migrate.run.migration import run_all

    if script.suffix == NOTEBOOK:
        raise UserError(f"{shown(script)}: a notebook cannot be run as a script; export it first (jupyter nbconvert)")
    if script.is_dir():
        raise UserError(f"{shown(script)}: is a folder; name the script that trains")
    found = discovery.discover((script,))
    path = script.resolve()
    run = run_all([path], MigrationJob(options, frozenset({path})))
    problems = [*found.problems, *run.problems]
    if problems:
        raise UserError("\n       ".join(map(str, problems)))
    report = run.reports[0]
    if not run.updates:
        raise NothingShownError(_nothing(report))
    return Versions(
        migrated={path: update.data for path, update in run.updates.items()},
        precision=report.precision,
        distribution="off" if report.distribution == "not requested" else report.distribution,
        uses_apex=any(edit.code.startswith(_APEX) for edit in report.edits),
        notes=tuple(_declined(report)),
        run=run,
        options=options,
        modules=report.reach.files if report.reach is not None else (),
    )


def given(script: Path, migrated: Path, project: CopiedProject) -> Versions:
    """Take a version that is migrated already: a file in place of the script, or a folder laid out as the project.

    Raises:
        UserError: it is not there, or does not hold the script.
    """
    place_ = Path(os.path.abspath(migrated))
    if place_.is_file():
        files: dict[Path, bytes | None] = {project.script: _read(place_)}
    elif place_.is_dir():
        files = dict(_folder(place_, project, migrated))
    else:
        raise UserError(f"--migrated {migrated}: no such file or directory")
    files = {path: data for path, data in files.items() if not path.exists() or _read(path) != data}
    if not files:
        raise NothingShownError(
            f"{shown(script)} and --migrated {migrated} hold the same, so there is nothing to compare"
        )
    return Versions(migrated=files, uses_apex=_mentions_apex(project.script))


def since(script: Path, revision: str) -> Versions:
    """Take the project as it was in a revision of git for the original, and the work tree for the migrated version.

    Raises:
        UserError: git does not know the revision, or the script was not there.
    """
    path = script.resolve()
    root = git_root(path)
    if root is None:
        raise UserError(f"--base {revision}: {shown(script)} does not lie in a git work tree")
    try:
        files = changed_since(root, revision)
    except GitError as error:
        raise UserError(f"--base {revision}: {error}") from error
    if path in files and files[path] is None:
        raise UserError(f"--base {revision}: {shown(script)} was not there")
    if not files:
        raise NothingShownError(f"nothing has changed since {revision}, so there is nothing to compare")
    data = files.get(path)
    return Versions(original=files, uses_apex=b"apex" in (data if data is not None else _read(path)))


def _nothing(report: Report) -> str:
    words = {"absent": "no training step was found", "already": "it is migrated already"}
    reason = words.get(report.precision, "nothing of it was migrated")
    lines = [f"nothing to verify: {reason} ({shown(report.entry)})", *_declined(report)]
    if report.precision == "already":
        lines.append("--base REVISION compares with an earlier version of it, --migrated PATH with another file")
    return "\n       ".join(lines)


def _declined(report: Report) -> Iterator[str]:
    for refusal in report.refusals:
        where = place(refusal.path, refusal.span.start.line if refusal.span else None, cell=refusal.cell)
        yield f"{refusal.unit} declined at {where}: {refusal.code} {refusal.name}: {refusal.message}"


def _folder(folder: Path, project: CopiedProject, named: Path) -> Iterator[tuple[Path, bytes | None]]:
    """The Python files of a folder, by where they belong in the project."""
    bases = (project.root, project.cwd, project.script.parent)
    fitting = (base for base in bases if project.script.is_relative_to(base))
    base = next((base for base in fitting if (folder / project.script.relative_to(base)).is_file()), None)
    if base is None:
        raise UserError(f"--migrated {named}: it holds no {project.script.name} where the project has it")
    for path in sorted(folder.rglob("*.py")):
        yield base / path.relative_to(folder), _read(path)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UserError(str(Problem(path, "is too large for a Python file")))
        return path.read_bytes()
    except OSError as error:
        raise UserError(str(Problem(path, f"cannot be read: {error.strerror or error}"))) from error


def _mentions_apex(script: Path) -> bool:
    return b"apex" in _read(script)
