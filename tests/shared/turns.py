"""Which tests of many have their turn with a commit, as `scripts/test.sh full` counts them."""

from __future__ import annotations

import os
import zlib

TURN = os.environ.get("AMP_TEST_TURN", "")
"""Number of the turn, 0 to 47; empty for all tests."""


def has_its_turn(name: str, turns: int, turn: str = TURN) -> bool:
    """Whether what has this name is tried, of which each is tried once in so many turns. The same in every process."""
    return not turn or zlib.crc32(name.encode()) % turns == int(turn) % turns
