"""What a verification compared, as the migration that a report shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from amp_rules.source.text import SourceError, read_bytes

from amp_migrate.notebook.source import source_of
from amp_migrate.report.pages import Migration
from amp_migrate.run.discovery import NOTEBOOK
from amp_migrate.run.migration import Run, Update
from amp_migrate.verify.versions import Versions


def migration_of(versions: Versions) -> Migration:
    """Return the migration that was verified; of a version that was given, its differences without labels."""
    if versions.run is not None:
        return Migration(versions.run, versions.options)
    updates = {}
    for path in sorted({*versions.original, *versions.migrated}):
        if path.suffix in (".py", NOTEBOOK):
            update = _update(path, _content(path, versions.original), _content(path, versions.migrated))
            if update is not None:
                updates[path] = update
    return Migration(Run(updates=updates), versions.options)


def _content(path: Path, version: Mapping[Path, bytes | None]) -> bytes:
    """What a version has in place of a file, else what is on disk; nothing where there is none."""
    if path in version:
        return version[path] or b""
    return read_bytes(path) if path.exists() else b""


def _update(path: Path, before: bytes, after: bytes) -> Update | None:
    try:
        source = source_of(before, path)
        return Update(source, source_of(after, path).text, after)
    except SourceError:
        # What is no Python, or no notebook, cannot be shown as such.
        return None
