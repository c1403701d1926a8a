"""Gradients that the script itself computes, refused."""

from __future__ import annotations

from typing import Any

from amp_runtime._core.left_out import refuse


def true_gradients(scaler: Any, gradients: Any) -> Any:
    """Refuses ``amp.scaler.unscale_gradients``.

    Raises:
        LeftOutError: always.
    """
    refuse("amp.scaler.unscale_gradients")
