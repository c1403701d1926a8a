"""``AMP_CHECK``: how much a run is looked at."""

from __future__ import annotations

import os
from typing import Literal

Setting = Literal["off", "on", "every"]
SETTINGS: tuple[Setting, ...] = ("off", "on", "every")


def setting() -> Setting:
    """What the environment asks for: ``"on"`` where it says nothing.

    Raises:
        ValueError: it is none of the three.
    """
    text = os.environ.get("AMP_CHECK", "").strip() or "on"
    if text not in SETTINGS:
        raise ValueError(f"AMP_CHECK={text!r} in the environment; allowed: {', '.join(map(repr, SETTINGS))}")
    return text


def is_due(count: int, every: bool) -> bool:
    """Whether the ``count``-th time is one to look at: 1, 10, 100, 1000, ..., or each."""
    return every or 10 ** (len(str(count)) - 1) == count
