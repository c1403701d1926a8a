"""What one migration did and what it left alone: the result that every front end prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from amp_rules.source.reach import Reach
from amp_rules.source.spans import Span

Unit = Literal["precision", "distribution", "modern"]
Outcome = Literal["migrated", "extended", "declined", "already", "absent", "not requested", "not applicable"]

Launched = Literal["", "1", "N"]
"""How many processes a launcher must start for a script that cannot be started alone: "N" is several."""


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
class Note:
    """Something to know of a place besides what was done there; ``cell`` as in :class:`Edit`.

    Attributes:
        span: the place; None for what is about a whole file.
        code: as in ``AMP280``; see :mod:`amp_rules.plan.notes`.
        text: one sentence without a full stop.
    """

    path: Path
    span: Span | None
    code: str
    name: str
    text: str
    cell: int | None = None

    @property
    def line(self) -> int | None:
        """The line where it begins, if it is about one; in a notebook that of the cell."""
        return self.span.start.line if self.span else None


@dataclass(frozen=True)
class FileChange:
    """The text of one file before and after, newlines exactly as in the file."""

    path: Path
    before: str
    after: str


@dataclass(frozen=True)
class Report:
    """The result for one entry script.

    ``absent`` means that the script holds no training step at all, ``extended`` that it has processes of its own,
    which got what they lacked, ``not applicable`` that it is a notebook, which runs in one process in any case.
    ``in_full`` says that the script's own level is O0, so that nothing but ``AMP_OPT_LEVEL`` chooses mixed precision;
    ``level_if`` is the condition without which that variable is not read, and ``reads_level`` that it may be. ``asks``
    says that the script's command line has to name something, as a subcommand.
    ``seconds`` tells how long each phase took; it is empty where the result was kept.
    """

    entry: Path
    precision: Outcome
    distribution: Outcome
    changes: tuple[FileChange, ...] = ()
    edits: tuple[Edit, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[Note, ...] = ()
    launched: Launched = ""
    in_full: bool = False
    level_if: str = ""
    asks: bool = False
    reads_level: bool = True
    reach: Reach | None = field(default=None, compare=False, repr=False)
    seconds: tuple[tuple[str, float], ...] = field(default=(), compare=False, repr=False)
