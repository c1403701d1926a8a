"""Finds, without parsing, the lines that a rule could be about."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable

_NEWLINE = re.compile(r"\r\n|\r|\n")


class Triggers:
    """Texts and patterns to look for; plain texts are found at the speed of memory."""

    def __init__(self, wanted: Iterable[str | re.Pattern[str]]) -> None:
        unique = dict.fromkeys(wanted)
        texts = [item for item in unique if isinstance(item, str)]
        # One that contains another is found with it.
        self.texts = [text for text in texts if not any(other in text for other in texts if other != text)]
        self.patterns = [item for item in unique if not isinstance(item, str)]

    def match(self, text: str) -> bool:
        """Whether any of them occurs."""
        return any(item in text for item in self.texts) or any(item.search(text) for item in self.patterns)

    def lines(self, text: str) -> list[int]:
        """The lines, from 1 and sorted, on which one of them begins."""
        places: set[int] = set()
        for item in self.texts:
            start = text.find(item)
            while start >= 0:
                places.add(start)
                # What follows on the same line adds nothing.
                start = text.find("\n", start)
                start = text.find(item, start) if start >= 0 else -1
        for pattern in self.patterns:
            places.update(match.start() for match in pattern.finditer(text))
        if not places:
            return []
        starts = [0, *(match.end() for match in _NEWLINE.finditer(text))]
        return sorted({bisect_right(starts, place) for place in places})
