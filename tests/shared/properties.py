"""How many programs the tests that generate some are to draw."""

from __future__ import annotations

import os

TIMES = float(os.environ.get("AMP_TEST_EXAMPLES", "1"))


def examples(usual: int) -> int:
    """The number of examples, which is the usual one unless AMP_TEST_EXAMPLES makes it a multiple."""
    return max(1, round(usual * TIMES))
