"""No parameter has a master, since no model is half."""

from __future__ import annotations

from typing import Any

# Nobody asks for these where there are none.
exchanged: Any = None
take_gradients: Any = None
mark_gradients: Any = None
stepped_master: Any = None


def has_masters(optimizer: Any) -> bool:
    """Whether an optimizer's parameters have any."""
    return False


def has_master(tensor: Any) -> bool:
    """Whether a parameter has one."""
    return False


def return_gradients() -> None:
    """Gives gradients of masters back."""


def stop_following() -> None:
    """Forgets the masters."""
