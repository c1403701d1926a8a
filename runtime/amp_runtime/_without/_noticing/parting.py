"""Ranks are not compared."""

from __future__ import annotations

from typing import Any


def digest() -> None:
    """This rank's numbers."""


require_together: Any = None  # nobody has numbers
