"""What belongs to a function with a backward pass of its own."""

from __future__ import annotations

CONTEXT_METHODS = frozenset(
    {"mark_dirty", "mark_non_differentiable", "save_for_backward", "save_for_forward", "set_materialize_grads"}
)
"""Methods of the ``ctx`` that both passes are given."""

PLAIN_DECORATORS = frozenset({"staticmethod", "once_differentiable"})
"""Decorators of its methods that say nothing of types."""

FLOAT_FUNCTIONS = frozenset(
    {"amp_runtime.float_function", "amp_runtime.apex.amp.float_function", "apex.amp.float_function"}
)
"""Decorators of functions that get float32 arguments."""
