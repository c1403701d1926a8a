"""``async=True``, which was an argument's name before it became a word of the language.

A file that holds it does not parse, so this one rewrite works on tokens.
"""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import replace

from amp_rules.source.modules import Module, parse
from amp_rules.source.text import SourceFile
from amp_rules.torch import old_torch as old

_Place = tuple[int, int]


def repaired(source: SourceFile) -> tuple[SourceFile, list[_Place]] | None:
    """The text with ``non_blocking``, and where that stands; None when there is no such place.

    The places are lines, from 1, and columns, from 0, of the old text.

    Raises:
        SourceError: this alone does not make it Python; says what else is wrong.
    """
    places = _places(source.text)
    if not places:
        return None
    rows = source.text.split("\n")
    for line, column in sorted(places, reverse=True):
        row = rows[line - 1]
        if row[column : column + len(old.ASYNC)] != old.ASYNC:
            return None  # a lone carriage return ends a line for the tokenizer's caller only
        rows[line - 1] = row[:column] + old.NON_BLOCKING + row[column + len(old.ASYNC) :]
    text = "\n".join(rows)
    fixed = replace(source, text=text, data=source.encode(text))
    parse(fixed)
    return fixed, places


def unparsed(source: SourceFile, parsed: Module) -> Module:
    """The file as it is on disk: a text without a tree."""
    return Module(source, ast.Module([], []), parsed.is_entry)


def _places(text: str) -> list[_Place]:
    """Where ``async=`` is an argument of a method that copies."""
    found: list[_Place] = []
    callers: list[bool] = []
    before: list[str] = ["", "", ""]
    pending: _Place | None = None
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.NL, tokenize.COMMENT):
                continue
            word = token.string
            if pending is not None and word == "=":
                found.append(pending)
            pending = None
            if word in ("(", "[", "{"):
                callers.append(word == "(" and before[-2] == "." and before[-1] in old.COPYING)
            elif word in (")", "]", "}"):
                if callers:
                    callers.pop()
            elif word == old.ASYNC and callers and callers[-1] and before[-1] in ("(", ","):
                pending = token.start
            before = [*before[1:], word]
    except (tokenize.TokenError, SyntaxError):
        return []
    return found
