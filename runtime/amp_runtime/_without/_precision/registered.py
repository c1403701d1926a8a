"""No function is registered to run in one precision."""

from __future__ import annotations

from amp_runtime._precision.policy import Lists

_NONE = Lists()


def lists() -> Lists:
    """The registered operations of torch."""
    return _NONE


def follow() -> None:
    """Replaces the registered attributes."""


def forget() -> None:
    """Drops the registrations."""
