"""Gradients that the script itself has computed from a scaled loss."""

from __future__ import annotations

from typing import Any

import torch

from amp_runtime._core.context import HALF_DTYPES
from amp_runtime._distributed import shadow


def true_gradients(scaler: Any, gradients: Any) -> Any:
    """What ``amp.scaler.unscale_gradients`` returns."""
    scaled = scaler.is_enabled() and not scaler._in_closure
    weight = shadow.weight() or 1.0
    if gradients is None or not (scaled or weight != 1.0):
        return gradients
    if isinstance(gradients, torch.Tensor):
        wide = gradients.float() if gradients.dtype in HALF_DTYPES else gradients
        wide = wide / weight if weight != 1.0 else wide
        return wide * scaler._unit.inverse(wide.device) if scaled else wide
    if isinstance(gradients, (list, tuple)):
        return type(gradients)(true_gradients(scaler, gradient) for gradient in gradients)
    raise TypeError(
        f"amp.scaler.unscale_gradients got {type(gradients).__name__}; allowed: a tensor, None, or a tuple or list "
        "of these"
    )
