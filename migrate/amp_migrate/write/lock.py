"""One program at a time: a lock that the system itself takes back from a program that was killed."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PATIENCE = 3.0
_PAUSE = 0.05
# Windows forbids reading what is locked, and the text stands at the beginning.
_LOCKED_BYTE = 1 << 20
_HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)


class LockedError(Exception):
    """Another program holds the lock; the text is what it wrote into the file."""


@contextlib.contextmanager
def locked(file: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold the lock that is ``file``; the file stays, and means nothing while nobody holds it.

    Raises:
        LockedError: another program holds it, after ``patience`` seconds still.
        OSError: the file cannot be made.
    """
    handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        end = time.monotonic() + patience
        while not _take(handle):
            if time.monotonic() >= end:
                raise LockedError(os.read(handle, 200).decode("utf-8", "replace").strip() or "another process")
            time.sleep(_PAUSE)
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()}, since {time.strftime('%H:%M:%S')}\n".encode())
        yield
    finally:
        os.close(handle)


def _take(handle: int) -> bool:
    """Take the lock if it is free; on file systems without locks it is always free."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _HELD
    return True
