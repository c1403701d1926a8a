"""Ranks are not looked at while they wait."""

from __future__ import annotations

from typing import Any


def tell_error(error: BaseException, trace: Any) -> None:
    """Leaves for the others that this rank has failed."""
