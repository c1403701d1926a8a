"""Tensors that are made in the type of another one, what adds to a tensor, and what is infinite where it is zero."""

from __future__ import annotations

MADE_BY_ANOTHER = frozenset({"new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"})
"""Methods that make a tensor of their tensor's type."""

_FILLED = ("empty", "full", "ones", "zeros")

LIKE_ANOTHER = frozenset(f"torch.{name}_like" for name in _FILLED)
"""Functions that make a tensor of their argument's type."""

MADE_TO_FILL = frozenset(
    f"{library}.{name}{more}" for library in ("numpy", "torch") for name in _FILLED for more in ("", "_like")
)
"""Functions that make an array in memory of its own, of one number or of none yet."""

NUMBERED = frozenset({"torch.arange", "torch.linspace", "torch.range"})
"""Functions that number places."""

MADE_OF_A_TYPE = NUMBERED | frozenset(f"torch.{name}" for name in ("empty", "full", "ones", "tensor", "zeros"))
"""Functions that make a tensor of the type that they are told."""

ACCUMULATING = frozenset(
    {"add_", "index_add", "index_add_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "sub_"}
)
"""Methods that add to their tensor, or to a copy of it."""

DRAWN_LIKE_ANOTHER = frozenset({"torch.rand_like"})
"""Functions that draw numbers from zero on, in the type of their argument."""

DRAWN_OF_A_TYPE = frozenset({"torch.rand"})
"""Functions that draw numbers from zero on, in the type that they are told."""

DRAWING = frozenset({"exponential_", "uniform_"})
"""Methods that fill a tensor with such numbers."""

INFINITE_AT_ZERO = frozenset("erfinv icdf log log10 log2 logit ndtri reciprocal rsqrt".split())
"""What is infinite at an end of the range of what is drawn."""

KEEPS_ZERO = frozenset("abs add clamp clamp_min clip mul neg sqrt sub".split())
"""Arithmetic that is done with what is drawn before."""

DECAYING = frozenset({"mul_"})
"""Methods that take a moving average a little further from what it was: not ``lerp_``, which refuses two types."""

OF_SAME_TYPE = frozenset({"clone", "detach", "mean"})
"""Methods that give a tensor of their tensor's type, with which a moving average begins."""
