"""What a check found, and how it could be mended: plain data that front ends print, store and apply."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from amp_rules.source.spans import Span

Severity = Literal["error", "warning", "performance", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "performance", "info")
Safety = Literal["safe", "unsafe"]
EditKind = Literal["replace", "insert before", "insert after", "remove", "decorate", "import"]


@dataclass(frozen=True, order=True)
class TextEdit:
    """One change of a fix.

    Attributes:
        kind: ``replace`` puts ``text``, an expression, in place of the expression at ``span``; ``insert before`` and
            ``insert after`` put a statement beside the one at ``span``; ``remove`` deletes the statement at ``span``;
            ``decorate`` puts the decorator ``text`` (without ``@``) directly above the function at ``span``;
            ``import`` adds the import statement ``text`` to the head of the file, unless it is there.
        span: the node that it is about, exactly as :mod:`ast` delimits it, columns in code points.
        text: Python source, one line.
    """

    kind: EditKind
    span: Span
    text: str = ""


@dataclass(frozen=True)
class Fix:
    """How a finding is mended.

    ``safe`` fixes change float32 results by no more than rounding; ``unsafe`` ones want a reader.
    """

    title: str
    safety: Safety
    edits: tuple[TextEdit, ...]


@dataclass(frozen=True)
class Finding:
    """One place that goes wrong in a mode.

    Attributes:
        path: the file.
        span: the expression or statement that is wrong.
        code: the rule's, as in ``AMP601``.
        name: the rule's, as in ``const-overflow-fill``.
        severity: ``error`` crashes or gives inf or NaN, ``warning`` gives wrong or worse results silently,
            ``performance`` costs time or memory, ``info`` is hygiene.
        message: one sentence that names the user's own variables.
        mode: the mode in which this holds.
        fix: how to mend it by machine, where that is possible.
        advice: what to do by hand, one sentence.
    """

    path: Path
    span: Span
    code: str
    name: str
    severity: Severity
    message: str
    mode: str
    fix: Fix | None = None
    advice: str = ""


def by_place(finding: Finding) -> tuple[str, Span, str, str]:
    """Sort key: file, place, code."""
    return str(finding.path), finding.span, finding.code, finding.message
