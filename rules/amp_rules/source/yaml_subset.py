"""The part of YAML that configurations of training scripts are written in: mappings, lists and scalars.

Anchors, tags and several documents in one file are not read, and the file that has one is not read at all. Numbers and
dates stay the texts that they are: nothing here asks for more than names of classes and functions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_KEY = re.compile(r"""(?P<key>"[^"]*"|'[^']*'|[^\s\[\]{}#&*!|>'"%@`,?:-][^#:]*?|-[^\s:]+)\s*:(?=\s|$)\s*""")
_ITEM = re.compile(r"-(?:\s+|$)")
_DOCUMENTS = re.compile(r"^[^\s#%-].*\n(?:.*\n)*?---(?:\s|$)", re.MULTILINE)
_TEXT_BELOW = re.compile(r"[|>][+-]?\d?$")
_NOT_READ = ("&", "*", "!", "%", "@", "`", "? ")
_WORDS: dict[str, str | bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}
_MAX_DEPTH = 30
"""Levels of one file; people's configurations have five."""


class NotRead(ValueError):
    """A text that is none, or that has more than is read here."""


@dataclass(frozen=True)
class _Line:
    indent: int
    text: str


def read_yaml(text: str) -> object:
    """What a text holds: dictionaries, lists, strings, booleans and None.

    Raises:
        NotRead: it has what is not read here.
    """
    lines = [
        _Line(len(row) - len(row.lstrip(" ")), found)
        for row in text.split("\n")
        if (found := _without_comment(row.rstrip()).strip(" ")) and found != "---"
    ]
    if any(line.text.startswith(("\t", "...", "--- ")) for line in lines) or _DOCUMENTS.search(text):
        raise NotRead
    reader = _Reader(lines)
    value = reader.block(-1, 0) if lines else None
    if reader.at < len(lines):
        raise NotRead
    return value


def _without_comment(row: str) -> str:
    """The row up to a ``#`` that begins a comment."""
    quote = ""
    for index, character in enumerate(row):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and (not index or row[index - 1] in " [{,:"):
            quote = character
        elif character == "#" and (not index or row[index - 1].isspace()):
            return row[:index].rstrip()
    return row


class _Reader:
    """Reads blocks by their indentation."""

    def __init__(self, lines: list[_Line]) -> None:
        self.lines = lines
        self.at = 0

    def block(self, outer: int, depth: int) -> object:
        """The value that the following lines hold, which are deeper than ``outer``."""
        if depth > _MAX_DEPTH:
            raise NotRead
        line = self.lines[self.at]
        if line.indent <= outer:
            return None
        if _ITEM.match(line.text):
            return self._list(line.indent, depth)
        if _KEY.match(line.text):
            return self._mapping(line.indent, depth)
        return self._inline(line.text, outer)

    def _list(self, indent: int, depth: int) -> list[object]:
        found: list[object] = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            mark = _ITEM.match(line.text)
            if line.indent != indent or mark is None:
                break
            rest = line.text[mark.end() :]
            if rest:
                # What stands behind the mark is a block of its own, as deep as it stands.
                self.lines[self.at] = _Line(indent + mark.end(), rest)
                found.append(self.block(indent, depth + 1))
            else:
                self.at += 1
                found.append(self._below(indent, depth))
        self._end(indent)
        return found

    def _mapping(self, indent: int, depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        while self.at < len(self.lines):
            line = self.lines[self.at]
            key = _KEY.match(line.text)
            if line.indent != indent or key is None:
                break
            name, rest = key["key"].strip("\"'"), line.text[key.end() :]
            if name == "<<":
                raise NotRead
            if _TEXT_BELOW.fullmatch(rest):
                self.at += 1
                self._skip(indent)
                found[name] = ""
            elif rest:
                found[name] = self._inline(rest, indent)
            else:
                self.at += 1
                found[name] = self._below(indent, depth, lists_at=indent)
        self._end(indent)
        return found

    def _below(self, indent: int, depth: int, lists_at: int | None = None) -> object:
        if self.at >= len(self.lines):
            return None
        line = self.lines[self.at]
        if line.indent > indent or (line.indent == lists_at and _ITEM.match(line.text)):
            return self.block(min(indent, line.indent - 1), depth + 1)
        return None

    def _skip(self, indent: int) -> None:
        while self.at < len(self.lines) and self.lines[self.at].indent > indent:
            self.at += 1

    def _end(self, indent: int) -> None:
        if self.at < len(self.lines) and self.lines[self.at].indent > indent:
            raise NotRead

    def _inline(self, text: str, indent: int) -> object:
        """A value that begins on this line, and goes on below where it is not complete."""
        self.at += 1
        while self.at < len(self.lines) and (self.lines[self.at].indent > indent or _is_open(text)):
            text += " " + self.lines[self.at].text
            self.at += 1
        value, end = _flow(text, 0, 0)
        if text[end:].strip():
            raise NotRead
        return value


def _is_open(text: str) -> bool:
    return text[0] in "[{" and sum(map(text.count, "[{")) > sum(map(text.count, "]}"))


def _flow(text: str, at: int, depth: int) -> tuple[object, int]:
    """The value at a place of a line, and where it ends."""
    if depth > _MAX_DEPTH:
        raise NotRead
    at = _past_spaces(text, at)
    if text[at : at + 1] in ("[", "{"):
        return _flow_list(text, at, depth) if text[at] == "[" else _flow_mapping(text, at, depth)
    return _scalar(text, at, within=depth > 0)


def _flow_list(text: str, at: int, depth: int) -> tuple[list[object], int]:
    found: list[object] = []
    at = _past_spaces(text, at + 1)
    while text[at : at + 1] != "]":
        value, at = _flow(text, at, depth + 1)
        found.append(value)
        at = _past_comma(text, at, "]")
    return found, at + 1


def _flow_mapping(text: str, at: int, depth: int) -> tuple[dict[str, object], int]:
    found: dict[str, object] = {}
    at = _past_spaces(text, at + 1)
    while text[at : at + 1] != "}":
        key = _KEY.match(text, at)
        if key is None:
            raise NotRead
        found[key["key"].strip("\"'")], at = _flow(text, key.end(), depth + 1)
        at = _past_comma(text, at, "}")
    return found, at + 1


def _past_spaces(text: str, at: int) -> int:
    while text[at : at + 1] == " ":
        at += 1
    return at


def _past_comma(text: str, at: int, end: str) -> int:
    at = _past_spaces(text, at)
    if text[at : at + 1] == ",":
        return _past_spaces(text, at + 1)
    if text[at : at + 1] != end:
        raise NotRead
    return at


def _scalar(text: str, at: int, *, within: bool) -> tuple[str | bool | None, int]:
    if text[at : at + 1] in ("'", '"'):
        end = text.find(text[at], at + 1)
        if end < 0 or text[end + 1 : end + 2] == text[at]:
            raise NotRead
        return text[at + 1 : end], end + 1
    if text.startswith(_NOT_READ, at):
        raise NotRead
    end = _end_of_plain(text, at) if within else len(text)
    word = text[at:end].strip()
    return _WORDS.get(word.lower(), word), end


def _end_of_plain(text: str, at: int) -> int:
    """Where a word within brackets ends; ``${a,b}`` is one."""
    open_braces = 0
    while at < len(text):
        if text.startswith("${", at):
            open_braces += 1
        elif text[at] == "}" and open_braces:
            open_braces -= 1
        elif not open_braces and text[at] in ",]}":
            break
        at += 1
    return at
