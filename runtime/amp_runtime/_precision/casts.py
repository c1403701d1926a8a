"""Functions and modules that run in one precision, whatever surrounds them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from amp_runtime._core.context import context
from amp_runtime._core.trees import tensors_in, to_float, to_half

T = TypeVar("T", bound=Callable[..., Any])


def float_function(function: T) -> T:
    """Runs a function or a module in float32, with autocast off.

    For losses that autocast refuses or that overflow in half, such as ``nn.BCELoss``: half-precision tensors
    among the arguments become float32. Inert at O0 and before ``amp.init``.

    Args:
        function: a callable, or a module. A module stays the same object: its instance gets another
            ``forward``.

    Returns:
        The module itself, or a function with the same signature.

    Raises:
        TypeError: a class was given, or something that cannot be called.
    """
    return _in_precision(function, half=False)


def half_function(function: T) -> T:
    """Runs a function or a module in the half type of ``amp.init``, with autocast off.

    float32 tensors among the arguments become half. Inert at O0 and before ``amp.init``.

    Args:
        function: a callable, or a module, which stays the same object. Its parameters are not changed.

    Returns:
        The module itself, or a function with the same signature.

    Raises:
        TypeError: a class was given, or something that cannot be called.
    """
    return _in_precision(function, half=True)


def _in_precision(function: T, half: bool) -> T:
    name = "half_function" if half else "float_function"
    if isinstance(function, nn.Module):
        forward = function.__dict__.get("forward")
        if not (isinstance(forward, _FixedForward) and forward.half is half):
            function.forward = _FixedForward(function, forward, half)
        return function
    if isinstance(function, type):
        raise TypeError(f"amp.{name} got the class {function.__name__}; give it an instance: {function.__name__}()")
    if not callable(function):
        raise TypeError(f"amp.{name} got {function!r}; allowed: a function or a torch.nn.Module")

    @functools.wraps(function)
    def fixed(*args: Any, **kwargs: Any) -> Any:
        return _call(function, args, kwargs, half)

    return fixed  # type: ignore[return-value]


class _FixedForward:
    """A module instance's ``forward``; a class of this file, so that the module can be pickled and copied."""

    def __init__(self, module: nn.Module, forward: Any, half: bool) -> None:
        self.module = module
        self.replaced = forward
        self.half = half

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self.replaced or functools.partial(type(self.module).forward, self.module)
        return _call(forward, args, kwargs, self.half)


def _call(function: Callable[..., Any], args: Any, kwargs: Any, half: bool) -> Any:
    if not context.mixed:
        return function(*args, **kwargs)
    kinds = {tensor.device.type for tensor in tensors_in((args, kwargs))} | {context.device_type()}
    if half:
        dtype = context.half_dtype()
        args, kwargs = to_half(args, dtype), to_half(kwargs, dtype)
    else:
        args, kwargs = to_float(args), to_float(kwargs)
    with _autocast_off(kinds):
        return function(*args, **kwargs)


@contextmanager
def _autocast_off(kinds: set[str]) -> Iterator[None]:
    with ExitStack() as stack:
        for kind in kinds:
            if kind != "meta" and torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
