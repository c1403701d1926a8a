"""Texts with gaps, as far as they are known: whether two of them can be one, and whether they then share a piece.

Both questions go through all pairs of places in the two texts. A set of places in the second one is a number, one bit a
place, so that a step of the first text is a few operations, and no pair is met twice.
"""

from __future__ import annotations

from functools import lru_cache

UNKNOWN = "*"
NUMBER = "\2"
"""Stands for a whole number, which ``%d`` writes."""
_ENOUGH = 2
"""Characters in a row that two texts share; one alone is chance."""


@lru_cache(maxsize=4096)
def meets(one: str, other: str) -> bool:
    """Whether two texts with gaps can be one."""
    if not any(gap in text for gap in (UNKNOWN, NUMBER) for text in (one, other)):
        return one == other
    return bool(_ends_alike(one, other)[0] & 1)


@lru_cache(maxsize=4096)
def share_piece(one: str, other: str) -> bool:
    """Whether two texts can be one so that a piece of it is known in both: two characters in a row, one of a word."""
    alike = _ends_alike(one, other)
    if not alike[0] & 1:
        return False
    gaps, inside = _places(other, UNKNOWN), (1 << len(other)) - 1
    # Where one can be in the second text: with nothing in common just before, with a character of a word, with another
    # one, with more of them.
    apart, word, sign, signs = 1, 0, 0, 0
    for char, alike_next in zip(one, alike[1:], strict=True):
        reached = apart | word | sign | signs
        if char == UNKNOWN:
            # The gap ends here, or takes in what the other text has next.
            apart, word, sign, signs = inside & -(reached & -reached), 0, 0, 0
            continue
        apart = _spread_right(apart | (reached & gaps) << 1, gaps)
        same = _places(other, char)
        is_word = char.isalnum()
        if ((word | sign | signs if is_word else word) & same) << 1 & alike_next:
            return True
        more = (apart & same) << 1
        word, sign, signs = (more, 0, 0) if is_word else (0, more, ((sign | signs) & same) << 1)
        apart = (apart | reached) & gaps
    return False


def _ends_alike(one: str, other: str) -> list[int]:
    """For each end of the first text, from the whole to none of it, the ends of the second that it can be."""
    gaps, numbers = _places(other, UNKNOWN), _places(other, NUMBER)
    digits = sum(1 << index for index, char in enumerate(other) if char.isdigit())
    alike = _spread_left(1 << len(other), gaps)
    found = [alike]
    for char in reversed(one):
        if char == UNKNOWN:
            alike = (1 << alike.bit_length()) - 1
        elif char == NUMBER:
            alike = _spread_left(alike & gaps | alike >> 1 & (digits | numbers), gaps | digits)
        else:
            same = _places(other, char)
            of_number = (alike | alike >> 1) & numbers if char.isdigit() else 0
            alike = _spread_left(alike & gaps | alike >> 1 & same | of_number, gaps)
        found.append(alike)
    return found[::-1]


def _places(text: str, char: str) -> int:
    """The places in a text where a character stands."""
    return sum(1 << index for index, item in enumerate(text) if item == char)


def _spread_left(places: int, passing: int) -> int:
    """The places, and those before them from which only what can be passed leads there."""
    while (more := places | places >> 1 & passing) != places:
        places = more
    return places


def _spread_right(places: int, passing: int) -> int:
    """The places, and those behind them to which only what can be passed leads."""
    while (more := places | (places & passing) << 1) != places:
        places = more
    return places
