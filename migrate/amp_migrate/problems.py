"""What went wrong for one file, and how paths are shown to people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from amp_migrate.exit_codes import ExitCode

if TYPE_CHECKING:
    from amp_rules.source.text import SourceError


class UserError(Exception):
    """Something that stops the whole run and that only the user can put right; it ends with ``exit_code``."""

    exit_code: ClassVar[ExitCode] = ExitCode.ERROR


class NothingShownError(UserError):
    """There is nothing to compare, or no way to: neither a mistake nor an answer."""

    exit_code = ExitCode.NOTHING_SHOWN


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

        from amp_rules.source.files import nests_deeply
        from amp_rules.source.text import TOO_DEEP_MESSAGE, SourceError

        from amp_migrate.internal_errors import where

        if isinstance(error, SourceError):
            return cls.from_source_error(error)
        # The analysis needs no deep stack for code that is not deep itself: an error here is the tool's own then.
        if isinstance(error, (RecursionError, MemoryError)) and nests_deeply(path):
            return cls(path, TOO_DEEP_MESSAGE, detail=traceback.format_exc())
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        message = f"internal error: {reason}; please report; {consequence}{where(error)}"
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
