"""Tensors that are made in the type of another one, and what adds to a tensor."""

from __future__ import annotations

MADE_BY_ANOTHER = frozenset({"new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"})
"""Methods that make a tensor of their tensor's type."""

LIKE_ANOTHER = frozenset(f"torch.{name}_like" for name in ("empty", "full", "ones", "zeros"))
"""Functions that make a tensor of their argument's type."""

NUMBERED = frozenset({"torch.arange", "torch.linspace", "torch.range"})
"""Functions that number places."""

MADE_OF_A_TYPE = NUMBERED | frozenset(f"torch.{name}" for name in ("empty", "full", "ones", "tensor", "zeros"))
"""Functions that make a tensor of the type that they are told."""

ACCUMULATING = frozenset(
    {"add_", "index_add", "index_add_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "sub_"}
)
"""Methods that add to their tensor, or to a copy of it."""
