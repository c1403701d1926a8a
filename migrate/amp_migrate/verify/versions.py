"""The two versions of a script that are compared: migrated just now, given by the user, or from git."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amp_rules.plan.notes import NOT_QUANTIZED
from amp_rules.plan.options import Options

from amp_migrate.git import GitError, changed_since, git_root
from amp_migrate.problems import NothingShownError, Problem, UserError, place, shown
from amp_migrate.run.discovery import NOTEBOOK
from amp_migrate.verify import plain_torch
from amp_migrate.verify.hand_made import has_autocast, look_at, modules_of, quantizes, shares_tables
from amp_migrate.verify.plain_torch import PlainTorch

if TYPE_CHECKING:
    from amp_rules.plan.report import Report

    from amp_migrate.run.migration import Run
    from amp_migrate.verify.copies import CopiedProject

_APEX = "AMP4"
_MAX_BYTES = 20_000_000
_QUANTIZES = "AMP119"
_OFF = (
    "The migrated version makes an int8 model: its amp.quantize is turned off from outside in all runs but int8. What "
    "it prints, reads and writes behind its training besides what the original does is not compared."
)
_PROCESSES = {"not requested": "off", "not applicable": "off", "extended": "already"}
"""What is extended are processes of the script's own, as before; a notebook has one whatever is asked for."""


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
        script: which file of the project the migrated version starts with; None for the script itself.
        native: whether the migrated version does without the runtime.
        native_before: whether the original uses torch's autocast or GradScaler itself, which is off in its runs.
        plain: of a version that does without the runtime and reads its level from ``AMP_OPT_LEVEL`` all the same, as
            ``--target torch`` writes it: what is known of it; None for any other.
        on_runtime_before: whether the original uses the runtime, as one does that was migrated to it earlier.
        int8: see :class:`amp_migrate.verify.plan.Asked`.
        quantizing: what the version that makes int8 models has in place of files, as in ``migrated``.
        tables: whether the migrated version shares the rows of embedding tables out, which are float32.
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
    script: Path | None = None
    native: bool = False
    native_before: bool = False
    plain: PlainTorch | None = None
    on_runtime_before: bool = False
    int8: str = ""
    quantizing: Mapping[Path, bytes | None] = field(default_factory=dict)
    tables: bool = False

    @property
    def target(self) -> str:
        """What the migrated version is made of: ``"torch"`` or ``"runtime"``; empty where somebody else made it."""
        if self.plain is not None:
            return "torch"
        return "" if self.native else "runtime"


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
    migrated: dict[Path, bytes | None] = {path: update.data for path, update in run.updates.items()}
    quantizing: dict[Path, bytes | None] = {}
    if any(edit.code == _QUANTIZES for edit in report.edits):
        # What trains is compared without it, so that nothing else than the original's is printed, written and drawn.
        quantizing, plainly = migrated, replace(options, quantize=None)
        updates = run_all([path], MigrationJob(plainly, frozenset({path}))).updates
        migrated = {path: update.data for path, update in updates.items()}
    modules = report.reach.files if report.reach is not None else ()
    is_plain = options.target == "torch"
    return Versions(
        migrated=migrated,
        precision=report.precision,
        distribution=_PROCESSES.get(report.distribution, report.distribution),
        uses_apex=any(edit.code.startswith(_APEX) for edit in report.edits),
        notes=(*_declined(report), *_of_int8(report, options, made=bool(quantizing))),
        int8="migrated" if quantizing else "",
        quantizing=quantizing,
        run=run,
        options=options,
        modules=modules,
        native=is_plain,
        plain=plain_torch.look_at((file, data) for file, data in migrated.items() if data is not None)
        if is_plain
        else None,
        tables=shares_tables(data for data in migrated.values() if data is not None),
        on_runtime_before=is_plain and look_at(_read(file) for file in (path, *modules)).runtime,
    )


def given(script: Path, against: Path, project: CopiedProject) -> Versions:
    """Take a version that is there already: a script, or a folder laid out as the project.

    A script that is a part of the project is run where it lies, another one in place of the original, with the modules
    that it imports beside it.

    Raises:
        UserError: it is not there, or does not hold the script.
        NothingShownError: it is the same as the original.
    """
    path = Path(os.path.abspath(against))
    entry = project.script
    if path.is_file():
        if path.suffix == NOTEBOOK:
            raise UserError(f"--against {against}: a notebook cannot be run as a script; export it first")
        if path.resolve() != entry and path.resolve().is_relative_to(project.root):
            entry = path.resolve()
        files = {} if entry != project.script else dict(_beside(path, project))
    elif path.is_dir():
        files = dict(_folder(path, project, against))
    else:
        raise UserError(f"--against {against}: no such file or directory")
    changed = {file: data for file, data in files.items() if not file.exists() or _read(file) != data}
    if not changed and _read(entry) == _read(project.script):
        raise NothingShownError(
            f"{shown(script)} and --against {against} hold the same, so there is nothing to compare"
        )
    modules = (*modules_of(project.script), *(modules_of(entry) if entry != project.script else ()))
    texts = {file: files[file] if file in files else _read(file) for file in {*modules_of(entry), *files}}
    return Versions(
        migrated=changed,
        quantizing=changed,
        script=entry if entry != project.script else None,
        modules=tuple(file for file in modules if file.is_file()),
        uses_apex=_mentions_apex(project.script),
        **_made_by_hand(texts, [_read(file) for file in modules_of(project.script)]),
    )


def since(script: Path, revision: str) -> Versions:
    """Take the project as it was in a revision of git for the original, and the work tree for the migrated version.

    Raises:
        UserError: git does not know the revision, or the script was not there.
        NothingShownError: nothing has changed since.
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
        raise NothingShownError(
            f"nothing has changed since {revision}, so there is nothing to compare{_earlier(revision)}"
        )
    modules = modules_of(path)
    is_same = files.keys().isdisjoint(modules)
    if is_same and not any(file.suffix == ".py" for file in files):
        raise NothingShownError(
            f"{shown(script)} and what it imports are the same as in {revision}, so there is nothing to compare"
            f"{_earlier(revision)}"
        )
    # A module that is found while the script runs may differ.
    same = f"{shown(script)} and what it is seen to import are the same as in {revision}{_earlier(revision)}"
    before = [files.get(file) or (b"" if file in files else _read(file)) for file in modules]
    made = Versions(
        original=files,
        uses_apex=b"apex" in before[0],
        **_made_by_hand({file: _read(file) for file in modules}, before),
    )
    return replace(made, notes=(f"{same}.", *made.notes)) if is_same else made


def _earlier(revision: str) -> str:
    """What to name in place of the last commit, which may hold the migration already."""
    return "; where the migration is committed already, --base HEAD~1 is the state before" if revision == "HEAD" else ""


def _made_by_hand(texts: Mapping[Path, bytes], before: Sequence[bytes]) -> dict[str, Any]:
    """What is known of a version that was given, by the texts of its files and of those of the original."""
    made = look_at(texts.values())
    if made.runtime:
        found: dict[str, Any] = {"tables": shares_tables(texts.values())}
        if quantizes(texts.values()) and not quantizes(before):
            found |= {"int8": "given", "notes": (_OFF,)}
        return found
    notes = []
    on_runtime_before = look_at(before).runtime
    if not made.precision:
        notes.append("The migrated version has no mixed precision, so half precision is not compared.")
    if not made.distribution:
        notes.append("The migrated version has no distributed training, so it is compared in one process only.")
    # One that has levels is left alone at all of them, and so is what it is compared with.
    native_before = has_autocast(before) and not made.levels and not on_runtime_before
    if native_before:
        notes.append("The original uses torch's autocast or GradScaler itself: all its runs are made with them off.")
    return {
        "native": True,
        "native_before": native_before,
        "plain": plain_torch.look_at(texts.items()) if made.levels else None,
        "on_runtime_before": on_runtime_before,
        "precision": "unknown" if made.precision else "absent",
        "distribution": "unknown" if made.distribution else "absent",
        "notes": tuple(notes),
    }


def _nothing(report: Report) -> str:
    words = {"absent": "no training step was found", "already": "it is migrated already"}
    reason = words.get(report.precision, "nothing of it was migrated")
    lines = [f"nothing to verify: {reason} ({shown(report.entry)})", *_declined(report)]
    if report.precision == "already":
        lines.append(
            "--base REVISION compares with an earlier version of it (HEAD: the last commit; HEAD~1: the one before, "
            "where the migration is committed), --against PATH with another file"
        )
    return "\n       ".join(lines)


def _declined(report: Report) -> Iterator[str]:
    for refusal in report.refusals:
        where = place(refusal.path, refusal.span.start.line if refusal.span else None, cell=refusal.cell)
        yield f"{refusal.unit} declined at {where}: {refusal.code} {refusal.name}: {refusal.message}"


def _of_int8(report: Report, options: Options, *, made: bool) -> Iterator[str]:
    """What a reader has to know of the int8 model that was asked for."""
    if made and options.quantize == "qat":
        yield (
            "With --quantize qat the model trains with rounding, so its losses are others: all runs but int8 are of "
            "the migration without it."
        )
    if options.quantize is None or made:
        return
    reasons = [note for note in report.notes if note.code == NOT_QUANTIZED.code]
    where = [f" ({place(note.path, note.line, cell=note.cell)}: {note.code}: {note.text})" for note in reasons[:1]]
    yield f"The migration makes no int8 model, so there is none to compare{''.join(where)}."


def _folder(folder: Path, project: CopiedProject, named: Path) -> Iterator[tuple[Path, bytes]]:
    """The Python files of a folder, by where they belong in the project."""
    bases = (project.root, project.cwd, project.script.parent)
    fitting = (base for base in bases if project.script.is_relative_to(base))
    base = next((base for base in fitting if (folder / project.script.relative_to(base)).is_file()), None)
    if base is None:
        raise UserError(f"--against {named}: it holds no {project.script.name} where the project has it")
    for path in sorted(folder.rglob("*.py")):
        yield base / path.relative_to(folder), _read(path)


def _beside(script: Path, project: CopiedProject) -> Iterator[tuple[Path, bytes]]:
    """A script of another place, where the original is, and the modules from its folder that it imports."""
    for path in modules_of(script):
        if path == script:
            yield project.script, _read(path)
        elif path.is_relative_to(script.parent):
            yield project.script.parent / path.relative_to(script.parent), _read(path)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UserError(str(Problem(path, "is too large for a Python file")))
        return path.read_bytes()
    except OSError as error:
        raise UserError(str(Problem(path, f"cannot be read: {error.strerror or error}"))) from error


def _mentions_apex(script: Path) -> bool:
    return b"apex" in _read(script)
