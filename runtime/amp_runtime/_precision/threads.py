"""Regions of autocast for functions that run in other threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from amp_runtime._core.context import context
from amp_runtime._precision import policy

F = TypeVar("F", bound=Callable[..., Any])


def in_this_region(function: F) -> F:
    """``function``, bound to run under the autocast of this place, in whatever thread it is called.

    Autocast holds for one thread: what a model hands to a pool or a ``threading.Thread`` in its forward pass would run
    without it, and half activations would meet float32 weights. Where nothing is cast, at O0 and outside of regions,
    the function itself is returned.

    Args:
        function: a callable, or a module.
    """
    kind = context.device_type()
    if not policy.casting() or not torch.is_autocast_enabled(kind):
        return function
    dtype = torch.get_autocast_dtype(kind)
    bound = policy.remember(function)

    def inside(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(kind, dtype):
            return bound(*args, **kwargs)

    if not isinstance(function, torch.nn.Module):
        functools.update_wrapper(inside, function)
    return inside  # type: ignore[return-value]
