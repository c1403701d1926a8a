"""Tensors that are shared out over the processes, of which each looks at its own part."""

from __future__ import annotations

from typing import Any


def own_part(tensor: Any) -> Any:
    """This process's part of a tensor, or the tensor: putting it together would take all processes at once."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
