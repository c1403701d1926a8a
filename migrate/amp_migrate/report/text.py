"""Words for people: numbers, and texts of others that must not do more than be read."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_CODE = re.compile(r"`([^`\n]+)`")


def visible(text: str) -> str:
    """Return ``text`` with what cannot be seen, or turns the direction of writing, shown as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in "\t\n" or unicodedata.category(char) not in _HIDDEN else ascii(char)[1:-1] for char in text
    )


def parts(message: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a sentence, and of each whether it stands in backticks and is code."""
    for number, part in enumerate(_CODE.split(message)):
        if part:
            yield part, bool(number % 2)


def number(value: float | None) -> str:
    """Return a loss in six digits."""
    return "not finite" if value is None else f"{value:.6g}"
