"""Which files of a project mention a name: where the other end of an import may be."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from amp_rules.source.project import marked_root, project_root

_MAX_FILES = 400
"""A project with more files is not searched: its helpers have too many users for one of them to tell anything."""
_MAX_BYTES = 6_000_000
_MAX_FOLDERS = 300
_LEFT_OUT = frozenset({"node_modules", "site-packages", "build", "dist", "venv", "env", "__pycache__"})


class Mentions:
    """The texts of a project's files, read when something is first looked for in them.

    Args:
        file: one of its files.
        suffixes: how the files end that are searched.
    """

    def __init__(self, file: Path, suffixes: tuple[str, ...] = (".py",)) -> None:
        self._root = project_root(file)
        self._suffixes = suffixes
        self._is_marked = marked_root(file) is not None

    def of(self, *words: str) -> list[Path]:
        """The files that hold all of these words, in the order of their paths; none in a large project."""
        wanted = [word.encode() for word in words]
        return [path for path, text in self.texts.items() if all(word in text for word in wanted)]

    @cached_property
    def texts(self) -> dict[Path, bytes]:
        """All of them by their paths, in this order; none in a large project."""
        found: dict[Path, bytes] = {}
        size = 0
        for path in self._files():
            try:
                text = path.read_bytes()
            except OSError:
                continue
            size += len(text)
            if len(found) >= _MAX_FILES or size > _MAX_BYTES:
                return {}
            found[path] = text
        return dict(sorted(found.items()))

    def _files(self) -> list[Path]:
        found: list[Path] = []
        folders = [self._root]
        for count, folder in enumerate(folders):
            if count >= _MAX_FOLDERS or len(found) > _MAX_FILES:
                break
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                if entry.name.endswith(self._suffixes) and entry.is_file():
                    found.append(folder / entry.name)
                elif entry.is_dir(follow_symlinks=False) and self._is_searched(folder / entry.name):
                    folders.append(folder / entry.name)
        return found

    def _is_searched(self, folder: Path) -> bool:
        if folder.name.startswith(".") or folder.name in _LEFT_OUT:
            return False
        # Beside a script that stands alone, other people's folders may lie.
        return self._is_marked or (folder / "__init__.py").exists()
