"""Which of the files found are scripts to decide on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from amp_rules.folder.training_scripts import TrainingScripts, find_entries
from amp_rules.source.files import Files

from amp_migrate.problems import UserError, shown
from amp_migrate.run.discovery import Target

_LISTED = 20


@dataclass
class Scripts:
    """What is decided on.

    Attributes:
        chosen: the scripts, in the order in which they are reported.
        named: those that the user wrote the very path of.
        leftovers: files to bring up to date by themselves, unless one of the scripts leads to them.
        trainers: files with a training step, whichever script leads to them.
        files: number of files looked at to find the scripts; 0 where each was named.
        lines: number of their lines.
        parsed: what is on disk, with what was parsed to find the scripts.
    """

    chosen: list[Path] = field(default_factory=list)
    named: frozenset[Path] = frozenset()
    leftovers: list[Path] = field(default_factory=list)
    trainers: list[Path] = field(default_factory=list)
    files: int = 0
    lines: int = 0
    parsed: Files = field(default_factory=Files)


def choose(targets: Sequence[Target], entries: Sequence[str], *, modernize: bool) -> Scripts:
    """Choose the scripts: those that are named, and those of folders that train.

    Args:
        targets: the files found.
        entries: of those found in folders, only the ones with such a name or path; empty for all.
        modernize: whether files are brought up to date too that no training script leads to.

    Raises:
        UserError: no script of a folder is called so.
    """
    named = [target.path for target in targets if target.named]
    walked = [target.path for target in targets if not target.named]
    if not walked:
        if entries:
            raise UserError("--entry chooses among the scripts of a folder, and no folder is given")
        return Scripts(named, frozenset(named))
    files = Files()
    found = find_entries(walked, files)
    scripts = found.scripts if not entries else _matching(found, entries)
    leftovers = [] if entries else [*found.users, *(found.others if modernize else ())]
    chosen = {*named, *scripts}
    return Scripts(
        [target.path for target in targets if target.path in chosen],
        frozenset(named),
        [target.path for target in targets if target.path in set(leftovers) - chosen],
        [] if entries else found.trainers,
        found.files,
        found.lines,
        files,
    )


def _matching(found: TrainingScripts, entries: Sequence[str]) -> list[Path]:
    """The scripts that any of the names or patterns stands for."""
    chosen: set[Path] = set()
    for entry in entries:
        wanted = entry.removeprefix("./")
        matching = {path for path in found.scripts if _is_called(path, wanted)}
        if not matching:
            names = [shown(path) for path in found.scripts]
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            listed = ", ".join(names[:_LISTED]) + more
            raise UserError(f"--entry {entry}: no training script found is called so; found: {listed or 'none at all'}")
        chosen |= matching
    return [path for path in found.scripts if path in chosen]


def _is_called(path: Path, wanted: str) -> bool:
    return path == Path(wanted).resolve() or fnmatch(shown(path), wanted) or fnmatch(path.as_posix(), f"*/{wanted}")
