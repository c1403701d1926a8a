"""Tensors that are normalised, channel by channel."""

from __future__ import annotations

import torch

from amp_runtime._core.context import HALF_DTYPES


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """Half tensors as float32."""
    return tensor.float() if tensor.dtype in HALF_DTYPES else tensor


def per_channel(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A vector with one value a channel, in a shape that goes with ``like``."""
    return values.view([1, -1] + [1] * (like.dim() - 2))
