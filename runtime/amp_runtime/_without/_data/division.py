"""Epochs are shared out from their beginning."""

from __future__ import annotations

from typing import Any


class Division:
    """What is left of an epoch."""

    def __init__(self, *_: Any) -> None:
        pass


class Skipping:
    """An iterator whose first items are left out; there is none."""
