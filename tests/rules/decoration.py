"""Texts as people leave them: comments, blank lines, indentation, newlines and encodings of all kinds."""

from __future__ import annotations

import io
import re
import tokenize
from random import Random

REMARKS = ("# note", "#!bad style", "# TODO: обучение", "#训练", "# type: ignore", "#", "# fmt: off", "# a # b  ")


def decorated(random: Random, text: str) -> bytes:
    """The text of a program with other looks: what it does is the same."""
    if random.random() < 0.7:
        text = with_comments(random, text, random.choice([0.03, 0.1, 0.4]))
    if random.random() < 0.3:
        text = with_broken_lines(random, text, 0.15)
    if random.random() < 0.3:
        text = with_blank_lines(random, text)
    text = with_indentation(random, text)
    return encoded(random, text)


def tokens_of(text: str) -> list[tokenize.TokenInfo]:
    try:
        return list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return []


def _offsets(text: str) -> list[int]:
    """Where each line begins, by number from 1."""
    found = [0, 0]
    for line in text.splitlines(keepends=True) if "\x0c" not in text else text.split("\n"):
        found.append(found[-1] + len(line) + (0 if line.endswith("\n") else 1))
    return found


def _inserted(text: str, places: list[tuple[tuple[int, int], str]]) -> str:
    offsets = _offsets(text)
    for (line, column), addition in sorted(places, reverse=True):
        at = offsets[line] + column
        text = text[:at] + addition + text[at:]
    return text


def with_comments(random: Random, text: str, often: float) -> str:
    """Comments above statements, behind them, inside of brackets and below suites."""
    places: list[tuple[tuple[int, int], str]] = []
    depth, at_start, number = 0, True, 0
    for token in tokens_of(text):
        number += 1
        chosen = random.random() < often
        remark = f"{random.choice(REMARKS)} {number}" if chosen else ""
        if token.type == tokenize.OP and token.string in "([{":
            depth += 1
        elif token.type == tokenize.OP and token.string in ")]}":
            depth -= 1
        if token.type in (tokenize.INDENT, tokenize.DEDENT, tokenize.NL, tokenize.COMMENT, tokenize.ENDMARKER):
            continue
        if token.type == tokenize.NEWLINE:
            at_start = True
            if chosen and token.string:
                places.append((token.start, f"  {remark}"))
            continue
        if at_start and chosen:
            indent = token.line[: token.start[1]]
            if not indent.strip():
                places.append(((token.start[0], 0), f"{indent}{remark}\n"))
        elif (
            depth
            and chosen
            and token.string in ("(", ",", "[", "{")
            and "\n" not in token.line[token.end[1] :].rstrip("\n")
        ):
            places.append((token.end, f"  {remark}\n" + " " * random.choice([0, 4, 12])))
        at_start = False
    return _inserted(text, places)


def with_broken_lines(random: Random, text: str, often: float) -> str:
    """Backslashes between tokens of one statement."""
    places: list[tuple[tuple[int, int], str]] = []
    before: tokenize.TokenInfo | None = None
    for token in tokens_of(text):
        words = (tokenize.NAME, tokenize.OP, tokenize.NUMBER)
        if before is not None and before.type in words and token.type in words and before.end[0] == token.start[0]:
            if token.start[1] > before.end[1] and random.random() < often:
                places.append((token.start, "\\\n" + " " * random.choice([0, 2, 8])))
        before = token
    return _inserted(text, places)


def with_blank_lines(random: Random, text: str) -> str:
    rows = []
    quoted = '"""' in text or "'''" in text
    for row in text.split("\n"):
        if not quoted and random.random() < 0.15 and not (rows and rows[-1].endswith("\\")):
            rows.append(random.choice(["", "", "    ", "\t"]))
        rows.append(row)
    return "\n".join(rows)


def with_indentation(random: Random, text: str) -> str:
    """The same depth with other characters."""
    unit = random.choice(["    ", "    ", "  ", "\t", "   "])
    if unit == "    " or '"""' in text or "'''" in text:
        return text
    return re.sub(r"^(?:    )+", lambda match: unit * (len(match[0]) // 4), text, flags=re.MULTILINE)


def encoded(random: Random, text: str) -> bytes:
    """The text as bytes, with some kind of newlines, encoding and end."""
    end = random.choice(["\n", "\n", "\n", "", "\n\n", "\n    \n", "\n\n \n        \n\n"])
    text = text.rstrip("\n") + (end if not text.rstrip("\n").endswith("\\") else "\n")
    kind = random.choice(["utf-8", "utf-8", "utf-8", "utf-8-sig", "cookie"])
    newline = random.choice(["\n", "\n", "\n", "\r\n", "\r\n", "mixed", "\r"])
    codec = "utf-8"
    if kind == "cookie" and not text.startswith("#"):
        codec = random.choice(["latin-1", "cp1251", "utf-8", "shift_jis"])
        try:
            f"# é{text}".encode(codec)
            text = f"# -*- coding: {codec} -*- é\n" + text
        except UnicodeEncodeError:
            codec = "utf-8"
    elif kind == "utf-8-sig":
        codec = "utf-8-sig"
    if newline == "mixed":
        text = "".join(random.choice(["\n", "\r\n"]) if part == "\n" else part for part in re.split("(\n)", text))
    else:
        text = text.replace("\n", newline)
    return text.encode(codec)
