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

    ``detail`` is a traceback, shown on request only; ``cell`` the place in a notebook.
    """

    path: Path
    message: str
    line: int | None = None
    column: int | None = None
    detail: str = ""
    cell: int | None = None

    @classmethod
    def from_source_error(cls, error: SourceError) -> Problem:
        """Take over place and message of a file that cannot be read."""
        return cls(error.path, error.message, error.line, error.column, cell=error.cell)

    @classmethod
    def from_exception(cls, path: Path, error: Exception, consequence: str) -> Problem:
        """Say what came of an error while ``path`` was dealt with; ``consequence`` is what became of the file.

        To be called while the error is being handled, so that its traceback is known.
        """
        import traceback

        from amp_rules.program.source import TOO_DEEP_MESSAGE, SourceError

        if isinstance(error, SourceError):
            return cls.from_source_error(error)
        if isinstance(error, (RecursionError, MemoryError)):
            return cls(path, TOO_DEEP_MESSAGE, detail=traceback.format_exc())
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        message = f"internal error: {reason}; please report; {consequence}"
        return cls(path, message, detail=traceback.format_exc())

    def __str__(self) -> str:
        return f"{place(self.path, self.line, self.column, cell=self.cell)}: {self.message}"


def shown(path: Path) -> str:
    """Return ``path`` relative to the working directory where it lies below it, else as it is."""
    try:
        return path.relative_to(Path.cwd()).as_posix() or "."
    except ValueError:
        return str(path)


def place(path: Path, line: int | None = None, column: int | None = None, *, cell: int | None = None) -> str:
    """Return ``path:line:column``, as far as known, in the form that editors make clickable."""
    parts = [f"cell {cell}" if cell is not None else None, line, column]
    return ":".join([shown(path), *(str(part) for part in parts if part is not None)])
