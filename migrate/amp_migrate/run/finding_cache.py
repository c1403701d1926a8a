"""What an earlier run of the linter found.

One file for each project, set of rules and mode; an entry holds if the hash of its file is the same and so are those
of all files that its result rests on. Contents are hashed and times are not looked at: reading a few hundred scripts
takes a fraction of the time that Python takes to start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from amp_migrate.lint.catalogue import RuleInfo
from amp_migrate.lint.diagnostics import FileResult, from_plain, to_plain
from amp_migrate.run.store import FileStore


class FindingCache:
    """The results in one folder, for this version of the rules.

    Args:
        folder: where they are; None for a cache that remembers nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._store = FileStore(folder)
        self._mode = ""
        self._entries = self._store.entries("")

    def rules(self, load: Callable[[], Sequence[RuleInfo]]) -> tuple[RuleInfo, ...]:
        """Return what is known of the rules, by ``load`` if it is not stored."""
        stored = self._store.read("rules")
        if isinstance(stored, list):
            with contextlib.suppress(TypeError):
                return tuple(RuleInfo(**{**row, "modes": tuple(row["modes"])}) for row in stored)
        rules = tuple(load())
        self._store.write("rules", [asdict(rule) for rule in rules])
        return rules

    def open(self, root: Path, mode: str, codes: frozenset[str]) -> None:
        """Load what is known of runs with these rules in this mode, below the folder of the settings."""
        self._mode = mode
        self._entries = self._store.entries(self._store.name_of("lint", str(root), mode, sorted(codes)))

    def lookup(self, path: Path) -> FileResult | None:
        """Return the stored result of a file if it still holds."""
        entry = self._entries.get(str(path))
        if entry is None:
            return None
        try:
            digest, dependencies, plain = entry
            if self._store.digest(str(path)) != digest:
                return None
            if any(self._store.digest(name) != known for name, known in dependencies):
                return None
            return from_plain(path, self._mode, plain) if plain else FileResult(path)
        except (AttributeError, TypeError, ValueError):
            return None

    def store(self, result: FileResult) -> None:
        """Remember a result."""
        if self._store.folder is None or not result.lasting or not result.digest:
            return
        plain = to_plain(result) if result.diagnostics or result.problem else ()
        self._entries.keep(result.path, (result.digest, result.dependencies, plain))

    def save(self) -> None:
        """Write what is new."""
        self._entries.save()
