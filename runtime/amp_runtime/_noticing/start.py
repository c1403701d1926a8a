"""Begins and ends all checks of a run."""

from __future__ import annotations

from amp_runtime._noticing import parting, scaled_step


def begin() -> None:
    """Begins the checks that apply; ``amp.init`` does it."""
    scaled_step.begin()
    parting.begin()


def end() -> None:
    """Ends them; ``amp.shutdown`` does it."""
    scaled_step.end()
    parting.end()
