"""What Apex's layers do inside autocast: their tensors become the autocast type, and nothing else is cast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def cast_if_autocast(*values: Any) -> tuple[Any, ...]:
    """The values; inside autocast for their device, floating tensors but float64 ones are in its type."""
    device = _device_type(values)
    if not torch.is_autocast_enabled(device):
        return values
    dtype = torch.get_autocast_dtype(device)
    return tuple(value.to(dtype) if _casts(value) else value for value in values)


@contextmanager
def without_autocast(tensor: torch.Tensor) -> Iterator[None]:
    """Turns autocast off for the tensor's device."""
    with torch.autocast(tensor.device.type, enabled=False):
        yield


def _device_type(values: tuple[Any, ...]) -> str:
    return next((value.device.type for value in values if isinstance(value, torch.Tensor)), "cpu")


def _casts(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
