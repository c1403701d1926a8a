"""Edits and places as an editor takes them, and findings that outlive a half-typed text."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_migrate.lint.diagnostics import Diagnostic
from amp_migrate.server.actions import edits_between
from amp_migrate.server.found import Found, left_of
from amp_migrate.server.messages import workspace_edit
from amp_migrate.server.positions import Lines
from amp_rules.lint.finding import Finding, Fix
from amp_rules.source.spans import Position, Span
from hypothesis import given, settings
from hypothesis import strategies as st
from lsprotocol import types
from properties import examples

# Form feeds and the like end no line for an editor.
ROWS = st.lists(st.text("ab \t\f\N{LINE SEPARATOR}\N{PILE OF POO}é", max_size=4), max_size=6)


def offset(text: str, place: types.Position) -> int:
    """The index of a place that is counted in UTF-16, as the protocol says."""
    rows = text.replace("\r\n", "\n").split("\n")
    end = "\r\n" if "\r\n" in text else "\n"
    before = sum(len(row) + len(end) for row in rows[: place.line])
    units = rows[place.line].encode("utf-16-le")[: 2 * place.character]
    return before + len(units.decode("utf-16-le"))


def applied(text: str, edits: list[types.TextEdit]) -> str:
    for edit in sorted(edits, key=lambda item: offset(text, item.range.start), reverse=True):
        text = text[: offset(text, edit.range.start)] + edit.new_text + text[offset(text, edit.range.end) :]
    return text


@settings(max_examples=examples(200), deadline=None)
@given(ROWS, ROWS, st.sampled_from(["\n", "\r\n"]))
def test_edits_make_the_new_text_of_the_old_one(old, new, end):
    before, after = end.join(old), end.join(new)
    lines = Lines(before)
    if end == "\r\n" and len(old) < 2:
        # Where no line ends, nothing tells how lines end.
        after = after.replace(end, "\n")
    edit = workspace_edit("a.py", 1, edits_between(before, after), lines, versioned=False)
    assert applied(before, list(edit.changes["a.py"])) == after


def diagnostic(line: int, last: int | None = None) -> Diagnostic:
    span = Span(Position(line, 1), Position(last or line, 3))
    fix = Fix("title", "safe", ())
    return Diagnostic(Finding(Path("a.py"), span, "AMP601", "name", "error", "message", "mode", fix))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b c d", [(1, 1), (2, 3), (4, 4)]),
        ("a b c x d", [(1, 1), (2, 3), (5, 5)]),
        ("x a b c d", [(2, 2), (3, 4), (5, 5)]),
        ("a b x d", [(1, 1), (4, 4)]),
        ("a x c d", [(1, 1), (4, 4)]),
        ("a d", [(1, 1), (2, 2)]),
        ("x", []),
        ("", []),
    ],
)
def test_findings_outlive_changes_of_other_lines(text, expected):
    before = Found("a\nb\nc\nd", (diagnostic(1), diagnostic(2, 3), diagnostic(4)))
    left = left_of(before, text.replace(" ", "\n"))
    assert [(item.finding.span.start.line, item.finding.span.end.line) for item in left] == expected
    assert all(item.finding.fix is None for item in left)


@pytest.mark.parametrize(("encoding", "expected"), [("utf-16", 3), ("utf-8", 6), ("utf-32", 2)])
def test_columns_are_those_of_the_encoding(encoding, expected):
    lines = Lines("é\N{PILE OF POO}x\r\nb", encoding)
    assert lines.position(Position(1, 3)) == types.Position(0, expected)
    assert lines.position(Position(2, 9)) == types.Position(1, 1)
    assert lines.position(Position(3, 1)) == types.Position(1, 1)
    assert lines.newline == "\r\n"
