"""Which lines of a file are commands, by its kind: each with its number, and whether it is surely no sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

_FENCE = re.compile(r"\s*(?:>\s*)?(?:[-*]\s+)?(`{3,}|~{3,})(?!.*`)")
_SPAN = re.compile(r"(?<!`)(`{1,3})(?!`)(.+?)(?<!`)\1(?!`)")
_KEY = re.compile(r"\s*(?:-\s+)?(?:[\w.-]+:\s+)?(?:[|>][+-]?\s*$)?")
_PROMPT = re.compile(r"\s*(?:\([\w.-]+\)\s*)?(?:[$>%!]\s*)?(?=\S)")

Line = tuple[int, str, bool]


def _joined(rows: Iterable[tuple[int, str]], *, comments_end: bool = True) -> Iterator[tuple[int, str]]:
    """Lines with those that a backslash continues, on one line; a comment goes on where ``comments_end`` is false."""
    first, parts = 0, list[str]()
    for number, row in rows:
        row = row.rstrip()
        first = first if parts else number
        if not parts and comments_end and row.lstrip().startswith("#"):
            yield number, row
            continue
        if row.endswith("\\") and not row.endswith("\\\\"):
            parts.append(row[:-1].strip() if parts else row[:-1].rstrip())
            continue
        yield first, " ".join([*parts, row.strip() if parts else row])
        parts = []
    if parts:
        yield first, " ".join(parts)


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(text.split("\n"), 1)


def _shell_lines(text: str) -> Iterator[Line]:
    for number, row in _joined(_numbered(text)):
        if not row.lstrip().startswith("#"):
            yield number, row, True


def _make_lines(text: str) -> Iterator[Line]:
    for number, row in _joined(_numbered(text), comments_end=False):
        if row[:1].isspace() and not row.lstrip().startswith("#"):
            yield number, row.strip().lstrip("@-+"), True


def _docker_lines(text: str) -> Iterator[Line]:
    for number, row in _joined(_numbered(text)):
        if not row.lstrip().startswith("#"):
            yield number, row, True


def _yaml_lines(text: str) -> Iterator[Line]:
    for number, row in _joined(_numbered(text)):
        if row.lstrip().startswith("#"):
            continue
        row = row[_key_length(row) :].strip()
        if len(row) > 1 and row[0] == row[-1] and row[0] in "\"'":
            row = row[1:-1]
        yield number, row, True


def _key_length(row: str) -> int:
    match = _KEY.match(row)
    return match.end() if match else 0


def _prose_lines(text: str) -> Iterator[Line]:
    """Code blocks whole, of other lines what stands in backquotes; lines that are indented may be either."""
    fence = ""
    block: list[tuple[int, str]] = []
    for number, row in [*_numbered(text), (0, "")]:
        mark = _FENCE.match(row)
        in_code = bool(fence) or row.startswith(("    ", "\t", "  "))
        if mark and (not fence or (mark[1].startswith(fence) and not row.strip(" >`~"))):
            if fence:
                yield from _block(block, sure=True)
            block = []
            fence = "" if fence else mark[1]
            continue
        if in_code:
            block.append((number, row))
            if fence:
                continue
        elif block:
            yield from _block(block, sure=False)
            block = []
        for match in _SPAN.finditer(row):
            yield number, _PROMPT.sub("", match[2], count=1), True
    yield from _block(block, sure=bool(fence))


def _block(rows: Sequence[tuple[int, str]], *, sure: bool) -> Iterator[Line]:
    for number, row in _joined(rows):
        command = _PROMPT.sub("", row, count=1)
        if not command.startswith("#"):
            yield number, command, sure


READERS = {
    "shell": _shell_lines,
    "make": _make_lines,
    "docker": _docker_lines,
    "prose": _prose_lines,
    "yaml": _yaml_lines,
}
