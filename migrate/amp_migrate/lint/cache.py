"""What an earlier run found, kept between runs.

One file for each set of rules and mode; an entry holds if the hash of its file is the same and so are those of all
files that its result rests on. Contents are hashed and times are not looked at: reading a few hundred scripts takes a
fraction of the time that Python takes to start. Whatever is wrong with a cache file, it counts as absent. The files are
JSON, as they may come from anywhere: what Python reads faster can also do harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import amp_rules
from amp_rules.lint.digest import DIGEST_SIZE
from amp_rules.lint.digest import digest_of as digest_of

from amp_migrate.lint.catalogue import RuleInfo
from amp_migrate.lint.diagnostics import FileResult, from_plain, to_plain

# To be raised whenever the shape of what is stored changes.
_FORMAT = 1
_SUFFIX = ".json"
_CACHEDIR_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Made by amp-lint; see https://bford.info/cachedir/\n"
# Files of other versions of the rules may belong to another environment, so they stay for a while.
_STALE_SECONDS = 7 * 24 * 3600


def fingerprint() -> str:
    """Return what tells one state of the rules from another: sizes and times of the program's own files."""
    state: list[Any] = [_FORMAT, sys.version_info[:3]]
    for folder in (*amp_rules.__path__, os.path.dirname(__file__)):
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


class Cache:
    """The cache files in one folder, for this version of the rules.

    Args:
        folder: where they are; None for a cache that remembers nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.version = fingerprint() if folder else ""
        self._mode = ""
        self._name = ""
        self._entries: dict[str, Any] = {}
        self._digests: dict[str, str | None] = {}
        self._changed = False

    def rules(self, load: Callable[[], Sequence[RuleInfo]]) -> tuple[RuleInfo, ...]:
        """Return what is known of the rules, by ``load`` if it is not stored."""
        name = f"{self.version}-rules{_SUFFIX}"
        stored = self._read(name)
        if isinstance(stored, list):
            with contextlib.suppress(TypeError):
                return tuple(RuleInfo(**{**row, "modes": tuple(row["modes"])}) for row in stored)
        rules = tuple(load())
        self._write(name, [asdict(rule) for rule in rules])
        return rules

    def open(self, mode: str, codes: frozenset[str]) -> None:
        """Load what is known of runs with these rules in this mode."""
        key = hashlib.blake2b(repr((mode, sorted(codes))).encode(), digest_size=8).hexdigest()
        self._mode = mode
        self._name = f"{self.version}-{key}{_SUFFIX}"
        stored = self._read(self._name)
        self._entries = stored if isinstance(stored, dict) else {}

    def lookup(self, path: Path) -> FileResult | None:
        """Return the stored result of a file if it still holds."""
        entry = self._entries.get(str(path))
        if entry is None:
            return None
        try:
            digest, dependencies, plain = entry
            if self._digest(str(path)) != digest:
                return None
            if any(self._digest(name) != known for name, known in dependencies):
                return None
            return from_plain(path, self._mode, plain) if plain else FileResult(path)
        except (AttributeError, TypeError, ValueError):
            return None

    def store(self, result: FileResult) -> None:
        """Remember a result."""
        if self.folder is None or not result.lasting or not result.digest:
            return
        plain = to_plain(result) if result.diagnostics or result.problem else ()
        self._entries[str(result.path)] = (result.digest, result.dependencies, plain)
        self._changed = True

    def save(self) -> None:
        """Write what is new."""
        if self._changed:
            self._entries = {name: entry for name, entry in self._entries.items() if os.path.exists(name)}
            self._write(self._name, self._entries)
            self._changed = False

    def _digest(self, name: str) -> str | None:
        """Return the hash of a file's content, None if there is none, as it was when first asked for."""
        if name not in self._digests:
            try:
                with open(name, "rb") as file:
                    self._digests[name] = digest_of(file.read())
            except OSError:
                self._digests[name] = None
        return self._digests[name]

    def _read(self, name: str) -> Any:
        if self.folder is None:
            return None
        try:
            with open(self.folder / name, "rb") as file:
                data = file.read()
            head, body = data[: 2 * DIGEST_SIZE], data[2 * DIGEST_SIZE :]
            return json.loads(body) if digest_of(body).encode() == head else None
        except (OSError, ValueError, RecursionError):
            return None

    def _write(self, name: str, value: Any) -> None:
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
                os.replace(temporary, self.folder / name)
            except BaseException:
                os.unlink(temporary)
                raise

    def _prepare(self, folder: Path) -> None:
        if not (folder / "CACHEDIR.TAG").exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".gitignore").write_text("*\n", encoding="ascii")
            (folder / "CACHEDIR.TAG").write_text(_CACHEDIR_TAG, encoding="ascii")
        for file in folder.iterdir():
            current = file.name.startswith(self.version)
            if not current and file.suffix in (_SUFFIX, ".tmp") and file.stat().st_mtime < time.time() - _STALE_SECONDS:
                file.unlink()
