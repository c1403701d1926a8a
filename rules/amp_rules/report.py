"""What one migration did and what it left alone: the result that every front end prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Unit = Literal["precision", "distribution"]
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

    ``message`` says what was done and why, naming the user's own variables.
    """

    path: Path
    span: Span
    code: str
    name: str
    message: str


def in_order(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """The edits by file, place and rule, so that a report comes out the same every time."""
    return tuple(sorted(edits, key=lambda edit: (str(edit.path), edit.span, edit.code)))


@dataclass(frozen=True)
class Refusal:
    """Something that was left alone, with the reason and what to do by hand."""

    path: Path
    span: Span | None
    code: str
    name: str
    unit: Unit
    message: str
    recipe: str


@dataclass(frozen=True)
class FileChange:
    """The text of one file before and after, newlines exactly as in the file."""

    path: Path
    before: str
    after: str


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
