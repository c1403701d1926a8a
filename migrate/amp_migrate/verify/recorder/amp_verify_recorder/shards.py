"""Tensors that are shared out over the processes, of which each looks at its own part."""

from __future__ import annotations

from typing import Any


def is_shared_out(tensor: Any) -> bool:
    """Whether a tensor is one of torch's DTensors."""
    return hasattr(tensor, "to_local")


def own_part(tensor: Any) -> Any:
    """This process's part of a tensor, or the tensor: putting it together would take all processes at once."""
    return tensor.to_local() if is_shared_out(tensor) else tensor
