"""What went wrong for one file, and how paths are shown to people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amp_rules.program.source import SourceError


class UserError(Exception):
    """Something that stops the whole run and that only the user can put right."""


@dataclass(frozen=True)
class Problem:
    """One file that was left as it was although it should have been dealt with.

    ``detail`` is a traceback, shown on request only.
    """

    path: Path
    message: str
    line: int | None = None
    column: int | None = None
    detail: str = ""

    @classmethod
    def from_source_error(cls, error: SourceError) -> Problem:
        """Take over place and message of a file that cannot be read."""
        return cls(error.path, error.message, error.line, error.column)

    def __str__(self) -> str:
        return f"{place(self.path, self.line, self.column)}: {self.message}"


def shown(path: Path) -> str:
    """Return ``path`` relative to the working directory where it lies below it, else as it is."""
    try:
        return path.relative_to(Path.cwd()).as_posix() or "."
    except ValueError:
        return str(path)


def place(path: Path, line: int | None = None, column: int | None = None) -> str:
    """Return ``path:line:column``, as far as known, in the form that editors make clickable."""
    return ":".join([shown(path), *(str(number) for number in (line, column) if number is not None)])
