"""The files that a run left in its copy of the project: which, and what they hold.

Checkpoints are read without torch and without running anything that they name: a pickle's classes are replaced by
stand-ins that only keep what they are given. So a damaged or hostile file costs its description and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from amp_migrate.verify.saved_values import Unreadable, read_values
from amp_migrate.verify.traces import WrittenFile

_MOST = 2_000
"""So many files are described; a run that writes more, such as one an image, has the others left out."""
_LARGEST_TEXT = 2**20
_LEFT_OUT = frozenset({"__pycache__", ".git"})
_COMPILED = (".pyc", ".lock")

Listing = Mapping[str, tuple[int, int]]
"""The files of a folder by name, with size and time of the last change."""


def listing(folder: Path) -> Listing:
    """What is there before a run."""
    found = {}
    for path in _files(folder):
        try:
            facts = path.stat()
        except OSError:
            continue
        found[path.relative_to(folder).as_posix()] = (facts.st_size, facts.st_mtime_ns)
    return found


def written_files(folder: Path, before: Listing) -> tuple[WrittenFile, ...]:
    """Describe what is new or changed since, sorted by name."""
    now = listing(folder)
    names = sorted(name for name in now if now[name] != before.get(name))
    return tuple(_described(folder / name, name) for name in names[:_MOST])


def _files(folder: Path) -> Iterator[Path]:
    # Links are not followed: what they lead to may be the user's own.
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in names:
            path = Path(top, name)
            if not path.is_symlink() and path.is_file() and not name.endswith(_COMPILED):
                yield path


def _described(path: Path, name: str) -> WrittenFile:
    try:
        values = read_values(path)
        if values is not None:
            return WrittenFile(name, "values", entries=values.entries, classes=values.classes)
        text = _text(path)
        if text is not None:
            return WrittenFile(name, "text", text, text.count("\n"))
    except Unreadable:
        return WrittenFile(name, "unreadable")
    except OSError:
        pass
    return WrittenFile(name, "other")


def _text(path: Path) -> str | None:
    """The beginning of a text; None for what is none."""
    with path.open("rb") as file:
        data = file.read(_LARGEST_TEXT)
    if b"\0" in data:
        return None
    if len(data) == _LARGEST_TEXT:
        # The last line is not whole.
        data = data[: data.rfind(b"\n") + 1]
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None
