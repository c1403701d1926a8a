"""Results kept between runs, in a folder of JSON files.

Whatever is wrong with a file, it counts as absent. The files are JSON, as they may come from anywhere: what Python
reads faster can also do harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import amp_rules
from amp_rules.source.digest import DIGEST_SIZE, digest_of

import amp_migrate

# To be raised whenever the shape of what is stored changes.
_FORMAT = 2
_SUFFIX = ".json"
_CACHEDIR_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Made by amp-migrate; see https://bford.info/cachedir/\n"
# Files of other versions of the rules may belong to another environment, so they stay for a while.
_STALE_SECONDS = 7 * 24 * 3600


def fingerprint() -> str:
    """Return what tells one state of the program from another: sizes and times of its own files."""
    state: list[Any] = [_FORMAT, sys.version_info[:3]]
    for folder in (*amp_rules.__path__, *amp_migrate.__path__):
        state += sorted(_sources(folder))
    return hashlib.blake2b(repr(state).encode(), digest_size=8).hexdigest()


def _sources(folder: str) -> list[tuple[str, int, int]]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                status = entry.stat()
                found.append((entry.path, status.st_size, status.st_mtime_ns))
            elif entry.is_dir() and entry.name != "__pycache__":
                found += _sources(entry.path)
    return found


class FileStore:
    """The files in one folder, for this version of the program.

    Args:
        folder: where they are; None for a store that remembers nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._version = fingerprint() if folder else ""
        self._digests: dict[str, str | None] = {}

    def name_of(self, *key: object) -> str:
        """Return the name of the file for results that ``key`` tells from others."""
        return hashlib.blake2b(repr(key).encode(), digest_size=8).hexdigest()

    def digest(self, name: str) -> str | None:
        """Return the hash of a file's content, None if there is none, as it was when first asked for."""
        if name not in self._digests:
            try:
                with open(name, "rb") as file:
                    self._digests[name] = digest_of(file.read())
            except OSError:
                self._digests[name] = None
        return self._digests[name]

    def read(self, name: str) -> Any:
        """Return what was written under a name, or None."""
        if self.folder is None:
            return None
        try:
            with open(self._path(name), "rb") as file:
                data = file.read()
            head, body = data[: 2 * DIGEST_SIZE], data[2 * DIGEST_SIZE :]
            return json.loads(body) if digest_of(body).encode() == head else None
        except (OSError, ValueError, RecursionError):
            return None

    def write(self, name: str, value: Any) -> None:
        """Replace a file at once, so that a run at the same time reads the old state or the new one."""
        if self.folder is None:
            return
        import tempfile

        data = json.dumps(value, separators=(",", ":")).encode()
        # A cache that cannot be written is a slow run and no error.
        with contextlib.suppress(OSError):
            self._prepare(self.folder)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(digest_of(data).encode() + data)
                os.replace(temporary, self._path(name))
            except BaseException:
                os.unlink(temporary)
                raise

    def entries(self, name: str) -> Entries:
        """Return what is kept of each file under a name."""
        return Entries(self, name)

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{self._version}-{name}{_SUFFIX}"

    def _prepare(self, folder: Path) -> None:
        if not (folder / "CACHEDIR.TAG").exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".gitignore").write_text("*\n", encoding="ascii")
            (folder / "CACHEDIR.TAG").write_text(_CACHEDIR_TAG, encoding="ascii")
        for file in folder.iterdir():
            current = file.name.startswith(self._version)
            if not current and file.suffix in (_SUFFIX, ".tmp") and file.stat().st_mtime < time.time() - _STALE_SECONDS:
                file.unlink()


class Entries(dict[str, Any]):
    """What is kept of each file, by its path; files that are gone are forgotten."""

    def __init__(self, store: FileStore, name: str) -> None:
        stored = store.read(name)
        super().__init__(stored if isinstance(stored, dict) else {})
        self._store = store
        self._name = name
        self._changed = False

    def keep(self, path: Path, entry: Any) -> None:
        """Set what is known of a file."""
        self[str(path)] = entry
        self._changed = True

    def save(self) -> None:
        """Write what is new."""
        if self._changed:
            self._store.write(self._name, {name: entry for name, entry in self.items() if os.path.exists(name)})
            self._changed = False
