"""Optimizers load their state as torch does, since no parameter is half."""

from __future__ import annotations


def watch_optimizers() -> None:
    """Has optimizers make shards of whole state."""


def stop_watching_optimizers() -> None:
    """Gives torch its own function back."""
