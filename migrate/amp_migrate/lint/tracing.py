"""Findings found again in a changed text."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from amp_migrate.lint.diagnostics import Diagnostic


def still_there(
    shown: Sequence[Diagnostic], newer: Sequence[Diagnostic], before: Sequence[str], after: Sequence[str]
) -> list[Diagnostic]:
    """Return those of the newer findings that were shown before the text changed.

    On a line that is as it was, a finding is the same where its rule and its column are. Where lines have changed,
    only the rule tells; if it finds more there than was shown, nobody knows which are which, and none is returned.

    Args:
        shown: findings in the text as it was.
        newer: those in the text as it is.
        before: the lines of the one.
        after: the lines of the other.
    """
    found: list[Diagnostic] = []
    for kind, first, last, new_first, new_last in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        old = [item for item in shown if first < item.finding.span.start.line <= last]
        new = [item for item in newer if new_first < item.finding.span.start.line <= new_last]
        if kind == "equal":
            moved = new_first - first
            places = {(item.finding.code, _place(item, moved)) for item in old}
            found += [item for item in new if (item.finding.code, _place(item, 0)) in places]
            continue
        for code in {item.finding.code for item in old}:
            same = [item for item in new if item.finding.code == code]
            if len(same) <= sum(item.finding.code == code for item in old):
                found += same
    return [item for item in newer if any(item is other for other in found) and item.finding.fix]


def _place(item: Diagnostic, moved: int) -> tuple[int, int]:
    start = item.finding.span.start
    return start.line + moved, start.column
