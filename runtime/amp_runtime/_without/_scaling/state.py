"""The scaler's state, which nothing saves."""

from __future__ import annotations

from typing import Any

from amp_runtime._core.left_out import refuse


def state_of(scaler: Any) -> Any:
    """Refuses ``amp.scaler.state_dict``.

    Raises:
        LeftOutError: always.
    """
    refuse("amp.scaler.state_dict")


def load_into(scaler: Any, state_dict: Any) -> None:
    """Refuses ``amp.scaler.load_state_dict``.

    Raises:
        LeftOutError: always.
    """
    refuse("amp.scaler.load_state_dict")
