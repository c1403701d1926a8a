"""Replacing files so that a reader sees the old text or the new one and never half of it."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from amp_migrate.problems import Problem

CHANGED_SINCE = "changed since it was analysed; nothing was written, run again"


@dataclass(frozen=True)
class Replacement:
    """New contents for a file.

    ``expected`` is what the file must still hold (None: the file may be new, or hold anything).
    ``like`` is the file whose permissions a new file takes, unless it is given a ``mode``.
    ``temporary`` is the name, in the same folder, under which the new contents are prepared.
    """

    path: Path
    data: bytes
    expected: bytes | None
    like: Path
    mode: int | None = None
    temporary: str | None = None


def replace_all(replacements: Sequence[Replacement], stuck: list[Path] | None = None) -> Problem | None:
    """Write all files or none, and return what prevented it.

    Everything that commonly fails (a full disk, missing rights, a file changed meanwhile) fails while only
    temporary files exist. Should a later step fail all the same, the files already replaced are put back;
    ``stuck`` gets those that could not be.
    """
    stuck = [] if stuck is None else stuck
    staged: list[tuple[Replacement, Path]] = []
    done: list[tuple[Path, bytes | None]] = []
    current = replacements[0].path if replacements else Path()
    try:
        for replacement in replacements:
            current = replacement.path
            if problem := _unwritable(replacement):
                return problem
            staged.append((replacement, _stage(replacement)))
        for replacement, _ in staged:
            current = replacement.path
            if problem := changed_since(replacement):
                return problem
        for replacement, temporary in staged:
            current = replacement.path
            before = current.read_bytes() if current.exists() else None
            os.replace(temporary, current)
            done.append((current, before))
        sync_folders({replacement.path.parent for replacement in replacements})
    except OSError as error:
        stuck += _put_back(done)
        return Problem(current, f"cannot be written: {error.strerror or error}")
    except BaseException:
        # The user's Ctrl-C, above all.
        stuck += _put_back(done)
        raise
    finally:
        for _, temporary in staged:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    return None


def changed_since(replacement: Replacement) -> Problem | None:
    """Refuse to write over a file that no longer holds what is expected.

    Raises:
        OSError: it cannot be read.
    """
    if replacement.expected is not None and replacement.path.read_bytes() != replacement.expected:
        return Problem(replacement.path, CHANGED_SINCE)
    return None


def _unwritable(replacement: Replacement) -> Problem | None:
    """Refuse what a plain write would refuse; renaming over a read-only file would succeed."""
    path = replacement.path
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if replacement.expected is None:
            return None
        return Problem(path, "vanished since it was analysed; nothing was written")
    if not stat.S_ISREG(mode):
        return Problem(path, "is not a regular file; it was not overwritten")
    # The owner "root" may write anything, so the permission bits are looked at as well.
    if not os.access(path, os.W_OK) or not mode & 0o222:
        return Problem(path, "is read-only; make it writable or use -o to write elsewhere")
    return None


def _stage(replacement: Replacement) -> Path:
    """Write the new contents beside the file, with its owner and permissions, and return the path."""
    path = replacement.path
    model = next((file for file in (path, replacement.like) if file.exists()), None)
    status = model.stat() if model else None
    if replacement.temporary is not None:
        temporary = path.parent / replacement.temporary
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    else:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".tmp")
        temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(replacement.data)
            file.flush()
            os.fsync(file.fileno())
        if status is not None:
            if hasattr(os, "chown"):
                # Only root can keep another owner; for anybody else the file becomes their own.
                with contextlib.suppress(OSError):
                    os.chown(temporary, status.st_uid, status.st_gid)
            os.chmod(temporary, stat.S_IMODE(status.st_mode))
        else:
            os.chmod(temporary, 0o666 & ~_umask() if replacement.mode is None else replacement.mode)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _put_back(done: Sequence[tuple[Path, bytes | None]]) -> list[Path]:
    """Undo replacements, and return the files for which that failed."""
    stuck = []
    for path, before in done:
        try:
            if before is None:
                path.unlink()
            else:
                os.replace(_stage(Replacement(path, before, None, path)), path)
        except OSError:
            stuck.append(path)
    return stuck


def sync_folders(folders: set[Path]) -> None:
    """Make the renames themselves outlive a power cut, where the system offers that."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    for folder in folders:
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
