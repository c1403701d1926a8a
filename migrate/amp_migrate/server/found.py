"""What was found in a text, and what of it still holds in a later one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from amp_rules.source.spans import Position, Span

from amp_migrate.lint.diagnostics import Diagnostic
from amp_migrate.problems import Problem

_NEWLINE = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class Found:
    """What was found in a text.

    Attributes:
        text: of which it is said.
        diagnostics: what is reported.
        problem: why the text could not be judged, or not wholly.
        judged: whether the findings are those of this text; else they are left of an earlier one.
        dependencies: the other files that they rest on.
    """

    text: str
    diagnostics: tuple[Diagnostic, ...] = ()
    problem: Problem | None = None
    judged: bool = True
    dependencies: frozenset[str] = frozenset()


def left_of(before: Found, text: str) -> tuple[Diagnostic, ...]:
    """Return the findings of an earlier text that stand on lines which are still there.

    While somebody types, the text differs in one place from what it was: the lines above and below stay the same.
    """
    old, new = _NEWLINE.split(before.text), _NEWLINE.split(text)
    shorter = min(len(old), len(new))
    head = next((index for index in range(shorter) if old[index] != new[index]), shorter)
    rest = range(shorter - head)
    tail = next((index for index in rest if old[-1 - index] != new[-1 - index]), len(rest))
    return tuple(_moved(before.diagnostics, head, len(old) - tail, len(new) - len(old)))


def _moved(diagnostics: Sequence[Diagnostic], head: int, tail: int, shift: int) -> Iterator[Diagnostic]:
    """Yield what ends by line ``head`` as it is, and what begins after line ``tail`` moved by ``shift`` lines.

    None has a fix: what it would do to the text is known only once that can be parsed.
    """
    for item in diagnostics:
        span = item.finding.span
        by = 0 if span.end.line <= head else shift
        if span.end.line <= head or span.start.line > tail:
            moved = Span(
                Position(span.start.line + by, span.start.column), Position(span.end.line + by, span.end.column)
            )
            yield replace(item, finding=replace(item.finding, span=moved, fix=None), patch=None)
