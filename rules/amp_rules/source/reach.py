"""What of a project the decisions on one script rest on, so that they can be remembered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Reach:
    """What of a project the result for one script rests on.

    Attributes:
        files: the files that its imports lead to, itself included.
        probes: the files that were looked for, and whether they were there.
        functions: first and last line of each function that it can run, by file.
        folders: the folders that names were looked up in, with the names of their modules and configurations.
        settings: the files that say what else is on Python's path, and configurations.
        read: the hashes of the files as they were read, which is not always as they are since.
    """

    files: tuple[Path, ...]
    probes: tuple[tuple[Path, bool], ...]
    functions: Mapping[Path, tuple[tuple[int, int], ...]]
    folders: tuple[tuple[Path, tuple[str, ...]], ...] = ()
    settings: tuple[Path, ...] = ()
    read: Mapping[Path, str] = field(default_factory=dict)
