"""What one migration did and what it left alone: the result that every front end prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Unit = Literal["precision", "distribution", "modern"]
Outcome = Literal["migrated", "declined", "already", "absent", "not requested"]


@dataclass(frozen=True, order=True)
class Position:
    """A place in a text: ``line`` and ``column`` both count from 1, columns in code points."""

    line: int
    column: int


@dataclass(frozen=True, order=True)
class Span:
    """A half-open range of a text."""

    start: Position
    end: Position


@dataclass(frozen=True)
class Edit:
    """One change of the source, with the rule that made it.

    ``message`` says what was done and why, naming the user's own variables. In a notebook ``span`` counts the lines of
    the code cell with the number ``cell``.
    """

    path: Path
    span: Span
    code: str
    name: str
    message: str
    cell: int | None = None


def in_order(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """The edits by file, place and rule, so that a report comes out the same every time."""
    return tuple(sorted(edits, key=lambda edit: (str(edit.path), edit.span, edit.code)))


@dataclass(frozen=True)
class Refusal:
    """Something that was left alone, with the reason and what to do by hand; ``cell`` as in :class:`Edit`."""

    path: Path
    span: Span | None
    code: str
    name: str
    unit: Unit
    message: str
    recipe: str
    cell: int | None = None


@dataclass(frozen=True)
class FileChange:
    """The text of one file before and after, newlines exactly as in the file."""

    path: Path
    before: str
    after: str


@dataclass(frozen=True)
class Reach:
    """What of a project the result for one script rests on.

    Attributes:
        files: the files that its imports lead to, itself included.
        probes: the files that were looked for, and whether they were there.
        functions: first and last line of each function that it can run, by file.
        folders: the folders that names were looked up in, with the names of their modules.
    """

    files: tuple[Path, ...]
    probes: tuple[tuple[Path, bool], ...]
    functions: Mapping[Path, tuple[tuple[int, int], ...]]
    folders: tuple[tuple[Path, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Report:
    """The result for one entry script.

    ``absent`` means that the script holds no training step at all.
    """

    entry: Path
    precision: Outcome
    distribution: Outcome
    changes: tuple[FileChange, ...] = ()
    edits: tuple[Edit, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = field(default=())
    reach: Reach | None = field(default=None, compare=False, repr=False)
