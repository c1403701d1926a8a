"""Texts with gaps are compared in all places at once, and the answer is that of going through them letter by letter."""

from __future__ import annotations

from amp_rules.roles.gapped_texts import NUMBER, UNKNOWN, meets, share_piece
from hypothesis import given, settings
from hypothesis import strategies as st
from properties import examples

_TEXTS = st.text(f"ab1_{UNKNOWN}{NUMBER}", max_size=8)
_WITHOUT_NUMBERS = st.text(f"ab1_.{UNKNOWN}", max_size=8)


def _meet(one: str, other: str) -> bool:
    if not one or not other:
        return not one.strip(UNKNOWN) and not other.strip(UNKNOWN)
    if UNKNOWN in (one[0], other[0]):
        return _meet(one[1:], other) or _meet(one, other[1:])
    if one[0] == NUMBER and other[0].isdigit():
        return _meet(one[1:], other[1:]) or _meet(one, other[1:])
    if other[0] == NUMBER and one[0].isdigit():
        return _meet(one[1:], other[1:]) or _meet(one[1:], other)
    return one[0] == other[0] and _meet(one[1:], other[1:])


def _share(one: str, other: str, piece: str = "") -> bool:
    if len(piece) >= 2 and any(char.isalnum() for char in piece):
        return _meet(one, other)
    if not one or not other:
        return False
    if UNKNOWN in (one[0], other[0]):
        return _share(one[1:], other) or _share(one, other[1:])
    return one[0] == other[0] and _share(one[1:], other[1:], piece + one[0])


@settings(deadline=None, derandomize=True, database=None, max_examples=examples(300))
@given(_TEXTS, _TEXTS)
def test_texts_that_can_be_one(one: str, other: str) -> None:
    assert meets(one, other) == _meet(one, other)


@settings(deadline=None, derandomize=True, database=None, max_examples=examples(300))
@given(_WITHOUT_NUMBERS, _WITHOUT_NUMBERS)
def test_texts_that_share_a_piece(one: str, other: str) -> None:
    assert share_piece(one, other) == _share(one, other)


def test_long_texts_with_many_gaps_take_no_time() -> None:
    gaps = "a*" * 60
    assert not meets(gaps + "b", gaps + "c")
    assert not share_piece("*_" * 60, "*b" * 60)
