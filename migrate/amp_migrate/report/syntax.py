"""Python's syntax for the eye: each line as pieces of one kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType, is_token_subtype

from amp_migrate.report.hunks import Span
from amp_migrate.report.text import visible

# The first that a token's type is part of; the letters are classes of the style sheet.
_KINDS = (
    (Comment, "c"),
    (String, "s"),
    (Number, "m"),
    (Keyword, "k"),
    (Operator.Word, "k"),
    (Name.Decorator, "d"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Builtin, "b"),
)


@dataclass(frozen=True)
class Piece:
    """A part of a line; ``kind`` is empty for what needs no colour."""

    text: str
    kind: str


def highlighted(lines: Sequence[str]) -> list[list[Piece]]:
    """Return the pieces of each line of a Python text."""
    found: list[list[Piece]] = [[]]
    # Line by line the lexer would not know that it is inside of a string.
    for _, token, text in PythonLexer().get_tokens_unprocessed("\n".join(lines)):
        kind = _kind(token)
        for number, part in enumerate(text.split("\n")):
            if number:
                found.append([])
            if part:
                found[-1].append(Piece(part, kind))
    return found[: len(lines)]


def _kind(token: _TokenType) -> str:
    return next((kind for family, kind in _KINDS if is_token_subtype(token, family)), "")


def as_html(pieces: Iterable[Piece], marks: Sequence[Span] = (), tag: str = "mark") -> Markup:
    """Return a line as HTML, with ``tag`` around the columns that ``marks`` names."""
    out: list[str] = []
    column = 0
    for piece in pieces:
        for start, end, marked in _cut(column, column + len(piece.text), marks):
            text = escape(visible(piece.text[start - column : end - column]))
            html = f'<span class="{piece.kind}">{text}</span>' if piece.kind else text
            out.append(f"<{tag}>{html}</{tag}>" if marked else html)
        column += len(piece.text)
    return Markup("".join(out).replace(f"</{tag}><{tag}>", ""))


def _cut(start: int, end: int, marks: Sequence[Span]) -> Iterable[tuple[int, int, bool]]:
    """Yield the parts of a range, and whether each is marked."""
    for first, last in marks:
        if last <= start or end <= first:
            continue
        if start < first:
            yield start, first, False
        yield max(start, first), min(end, last), True
        start = min(end, last)
    if start < end:
        yield start, end, False
