"""The file of a notebook as text: where the source of each cell stands, and how a new one is written.

Only the lines of a cell that change are written anew; whatever else there is stays byte for byte, however it is laid
out or escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
# One line of a string as JSON writes it, up to and with its line feed.
_PIECE = re.compile(r"(?:[^\\]|\\(?!n|u000[aA])(?:u[0-9a-fA-F]{4}|.))*(?:\\n|\\u000[aA])|(?:[^\\]|\\.)+")


def source_spans(raw: str) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the number of each cell and where in the file the value of its ``source`` stands."""
    for key, start, _ in _members(raw, _skip(raw, 0)):
        if key == "cells":
            for number, (cell, _) in enumerate(_items(raw, start), start=1):
                if raw[cell] == "{":
                    yield from ((number, (at, end)) for name, at, end in _members(raw, cell) if name == "source")


def _members(raw: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, start and end of the members of the object at ``at``."""
    at = _skip(raw, at + 1)
    while raw[at] != "}":
        name, at = _DECODER.raw_decode(raw, at)
        start = _skip(raw, _skip(raw, at) + 1)
        _, end = _DECODER.raw_decode(raw, start)
        yield name, start, end
        at = _next(raw, end)


def _items(raw: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of the items of the array at ``at``."""
    at = _skip(raw, at + 1)
    while raw[at] != "]":
        _, end = _DECODER.raw_decode(raw, at)
        yield at, end
        at = _next(raw, end)


def _next(raw: str, at: int) -> int:
    at = _skip(raw, at)
    return _skip(raw, at + 1) if raw[at] == "," else at


def _skip(raw: str, at: int) -> int:
    match = _BLANK.match(raw, at)
    return match.end() if match else at


def as_json(text: str, old: str) -> str:
    """Write a cell's text as the old value was written: a string or a list, on one line or on several.

    Lines that stay are copied, for there is more than one way to write a string.
    """
    ascii_only = old.isascii() and "\\u" in old
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    if not old.startswith("["):
        written = {json.loads(f'"{piece}"'): piece for piece in _PIECE.findall(old[1:-1])}
        return (
            '"' + "".join(written.get(line) or json.dumps(line, ensure_ascii=ascii_only)[1:-1] for line in lines) + '"'
        )
    places = list(_items(old, 0))
    written = {json.loads(old[start:end]): old[start:end] for start, end in places}
    items = [written.get(line) or json.dumps(line, ensure_ascii=ascii_only) for line in lines]
    if not places or not items:
        return f"[{', '.join(items)}]"
    before, after = old[1 : places[0][0]], old[places[-1][1] : -1]
    between = old[places[0][1] : places[1][0]] if len(places) > 1 else f",{before}" if "\n" in before else ", "
    return f"[{before}{between.join(items)}{after}]"
