"""Places in the units that the editor counts in."""

from __future__ import annotations

import re
from functools import cached_property

from amp_rules.source.spans import Position, Span
from lsprotocol import types

# Other characters end no line for an editor, whatever `str.splitlines` thinks of them.
_NEWLINE = re.compile(r"\r\n|\r|\n")
_FIRST_OF_FOUR_BYTES = 0x10000


class Lines:
    """The lines of a text.

    Args:
        text: as the editor sent it.
        encoding: in whose units columns are counted; UTF-16 unless the editor asked for something else.
    """

    def __init__(self, text: str, encoding: str = types.PositionEncodingKind.Utf16.value) -> None:
        self.text = text
        self.encoding = encoding

    @cached_property
    def rows(self) -> list[str]:
        """The lines without their ends."""
        return _NEWLINE.split(self.text)

    @cached_property
    def newline(self) -> str:
        """How lines end."""
        match = _NEWLINE.search(self.text)
        return match[0] if match else "\n"

    def position(self, place: Position) -> types.Position:
        """Return a place as the editor counts; one past the end is the end."""
        if place.line > len(self.rows):
            return types.Position(len(self.rows) - 1, self._units(self.rows[-1]))
        row = self.rows[place.line - 1]
        return types.Position(place.line - 1, self._units(row[: place.column - 1]))

    def range(self, span: Span) -> types.Range:
        """Return a span as the editor counts."""
        return types.Range(self.position(span.start), self.position(span.end))

    def _units(self, text: str) -> int:
        if text.isascii() or self.encoding == types.PositionEncodingKind.Utf32.value:
            return len(text)
        if self.encoding == types.PositionEncodingKind.Utf8.value:
            return len(text.encode("utf-8", "surrogatepass"))
        return len(text) + sum(ord(character) >= _FIRST_OF_FOUR_BYTES for character in text)
