"""Files that are either the old one or the new one, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows, which removes no file that is open
    fcntl = None

_ABANDONED = 3600.0  # seconds without a write after which a file of another machine, without locks, is nobody's


def write_atomically(path: Path, write: Callable[[BinaryIO], object], keep: int = 0) -> None:
    """Writes a file beside ``path``, brings it to the disk, and only then gives it the name.

    Args:
        path: the file. Missing folders are made; a symbolic link is followed.
        write: writes the contents into an open file.
        keep: how many earlier files stay, as ``name.1.suffix`` (the latest) to ``name.<keep>.suffix``.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    temporary = _temporary(path)
    try:
        with open(temporary, "wb") as file:
            _lock(file)
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if keep:
            _rotate(path, keep)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _rotate(path: Path, keep: int) -> None:
    """Renames the earlier files, and gives the present one a second name: ``path`` exists at every moment."""
    if not path.exists():
        return
    for number in range(keep - 1, 0, -1):
        if (older := numbered(path, number)).exists():
            os.replace(older, numbered(path, number + 1))
    extra = _temporary(path, ".link")
    extra.unlink(missing_ok=True)
    try:
        os.link(path, extra)
    except OSError:  # a file system without hard links
        shutil.copy2(path, extra)
    os.replace(extra, numbered(path, 1))


def numbered(path: Path, number: int) -> Path:
    """The name of the ``number``-th file before the present one."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def _temporary(path: Path, kind: str = "") -> Path:
    """A name beside ``path`` that tells the machine and the process."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}{kind}.tmp")


def _lock(file: BinaryIO) -> bool:
    """Takes a file until it is closed or the process has ended; false if another one has it, or nobody can know."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_abandoned(path: Path) -> None:
    """Removes what a process left that was killed while it wrote."""
    of_this_machine = f".{path.name}.{socket.gethostname()}."
    for leftover in path.parent.glob(f".{_escaped(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            if _is_old(leftover) or (leftover.name.startswith(of_this_machine) and _is_free(leftover)):
                leftover.unlink()


def _is_old(file: Path) -> bool:
    return time.time() - file.stat().st_mtime > _ABANDONED


def _is_free(file: Path) -> bool:
    with open(file, "r+b") as opened:
        return _lock(opened)


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _sync_folder(folder: Path) -> None:
    """Brings the new name to the disk too, where folders can be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
