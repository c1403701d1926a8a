"""Overflows are counted, and not located."""

from __future__ import annotations

from typing import Any

OverflowLocation = None


class Observer:
    """Would look at the modules for the length of one step."""

    def __init__(self, models: Any) -> None:
        self.see_loss = self.location = self.remove = lambda *_: None
