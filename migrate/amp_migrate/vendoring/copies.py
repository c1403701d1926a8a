"""The copy of the runtime in one folder: what it holds, and what it is to become."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import tempfile
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_migrate.problems import Problem
from amp_migrate.runtimes import PACKAGE
from amp_migrate.vendoring.choosing import Source, files_for, relevant
from amp_migrate.vendoring.uses import Uses

MANIFEST = "VENDORED.json"
_EDITED_SHOWN = 3
_SCRIPTS_NAMED = 3


@dataclass(frozen=True)
class Copy:
    """A copy beside scripts.

    Attributes:
        path: its folder, absolute.
        before: what it holds now; ``None`` where there is none.
        after: what it is to hold.
    """

    path: Path
    before: Mapping[str, bytes] | None
    after: Mapping[str, bytes]

    @property
    def changes(self) -> bool:
        """Whether there is anything to write."""
        return self.before != self.after


def planned(folder: Path, uses: Uses, scripts: Iterable[str], source: Source, version: str) -> Copy | Problem:
    """What the copy in ``folder`` becomes: it keeps what it serves already, and gets what ``uses`` says.

    Args:
        folder: where the scripts lie.
        uses: what they use.
        scripts: their names.
        source: the installed runtime.
        version: its version.

    Returns:
        The copy, or why it must not be touched.
    """
    path = folder / PACKAGE
    uses = relevant(uses, source)
    names = set(scripts)
    before = None
    if path.exists() or path.is_symlink():
        try:
            before = contents(path) if path.is_dir() and not path.is_symlink() else {}
        except OSError as error:
            return Problem(Path(error.filename or path), f"cannot be read: {error.strerror or error}")
        if before == _whole(source):
            return Copy(path, before, before)  # an earlier version of this program copied everything
        recorded = _recorded(before)
        if recorded is None:
            message = "exists, and no record says that --vendor made it; rename or remove it, then run again"
            return Problem(path, message)
        if edited := _edited(before, recorded["files"]):
            shown = ", ".join(edited[:_EDITED_SHOWN]) + (", ..." if len(edited) > _EDITED_SHOWN else "")
            message = f"was edited since --vendor made it ({shown}); rename or remove it, then run again"
            return Problem(path, message)
        uses |= Uses(*(frozenset(recorded[part]) for part in ("names", "words", "levels")))
        names |= set(recorded["scripts"])
    return Copy(path, before, _files(uses, names, source, version))


def _files(uses: Uses, scripts: set[str], source: Source, version: str) -> dict[str, bytes]:
    command = "amp-migrate --vendor -w " + (
        shlex.join(sorted(scripts)) if 0 < len(scripts) <= _SCRIPTS_NAMED else "SCRIPT"
    )
    files = files_for(uses, source, command)
    levels = "at all levels" if uses.everything or uses.half_models else "at O0 and O1"
    told = (
        f"{PACKAGE} {version}, of the package amp-migrate (Apache License 2.0), copied by `amp-migrate --vendor`: what "
        f"the scripts beside it reach, {levels}. `{command}` adds what is missing and brings it up to date; a copy "
        f"that was edited it leaves alone. {MANIFEST} says what this one was made for."
    )
    head = "".join(f"# {line}\n" for line in textwrap.wrap(told, 110, break_long_words=False, break_on_hyphens=False))
    files["__init__.py"] = head.encode() + files["__init__.py"]
    record = {
        "package": PACKAGE,
        "version": version,
        "scripts": sorted(scripts),
        "levels": sorted(uses.levels),
        "names": sorted(uses.names),
        "words": sorted(uses.words),
        "files": {name: _digest(data) for name, data in sorted(files.items())},
    }
    files[MANIFEST] = (json.dumps(record, indent=2) + "\n").encode()
    return files


def contents(path: Path) -> dict[str, bytes]:
    """All files of a copy, by their paths in it, without what Python compiled."""
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts and file.suffix not in (".pyc", ".pyo")
    }


def _whole(source: Source) -> dict[str, bytes]:
    texts = [*source.modules.values(), *source.stand_ins_as_they_lie]
    return {**source.others, **{module.path: module.text.encode() for module in texts}}


def _recorded(files: Mapping[str, bytes]) -> dict[str, Any] | None:
    """What the copy's record says, if that is one."""
    try:
        record = json.loads(files.get(MANIFEST, b""))
        lists = all(isinstance(record[key], list) for key in ("scripts", "levels", "names", "words"))
        return record if lists and isinstance(record["files"], dict) else None
    except (ValueError, KeyError, TypeError):
        return None


def _edited(files: Mapping[str, bytes], recorded: Mapping[str, str]) -> list[str]:
    """The files that differ from what was written, are gone, or were added."""
    own = {name: _digest(data) for name, data in files.items() if name != MANIFEST}
    return sorted(name for name in own.keys() | recorded.keys() if own.get(name) != recorded.get(name))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(path: Path, files: Mapping[str, bytes], temporary: str | None = None) -> Problem | None:
    """Make a copy hold exactly these files, whole or not at all, and return what prevented it.

    It is prepared in a folder beside it, called ``temporary`` if that is given. The folder that it replaces is there
    or in that one at any time.
    """
    try:
        if temporary is not None:
            staging = path.with_name(temporary)
            staging.mkdir()
        else:
            staging = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{PACKAGE}."))
        try:
            for name, data in files.items():
                file = staging / "new" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
            _exchange(path, staging)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        return Problem(path, f"cannot be written: {error.strerror or error}")
    return None


def _exchange(path: Path, staging: Path) -> None:
    old = staging / "old"
    if path.exists():
        os.rename(path, old)
    try:
        os.rename(staging / "new", path)
    except OSError:
        if old.exists():
            os.rename(old, path)
        raise
