"""Functions and modules that run in one precision, whatever surrounds them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from amp_runtime._core.context import context
from amp_runtime._core.trees import map_tensors, tensors_in, to_float, to_half
from amp_runtime._precision.policy import casting
from amp_runtime._precision.rules import CASTABLE

T = TypeVar("T", bound=Callable[..., Any])
Precision = Literal["half", "float", "promote"]


def float_function(function: T) -> T:
    """Runs a function or a module in float32, with autocast off.

    For losses that autocast refuses or that overflow in half, such as ``nn.BCELoss``: half-precision tensors
    among the arguments become float32, also those in lists, tuples, mappings and dataclasses. Inert at O0,
    before ``amp.init`` and in ``amp.disable_casts()``.

    It works as a decorator of functions, of methods (``forward`` of a module too) and of the static methods of a
    ``torch.autograd.Function``, above or below ``@staticmethod``.

    Args:
        function: a callable, or a module. A module stays the same object: its instance gets another
            ``forward``.

    Returns:
        The module itself, or a function with the same signature.

    Raises:
        TypeError: a class was given, or something that cannot be called.
    """
    return in_precision(function, "float")


def half_function(function: T) -> T:
    """Runs a function or a module in the half type of ``amp.init``, with autocast off.

    float32 tensors among the arguments become half. Inert at O0, before ``amp.init`` and in
    ``amp.disable_casts()``. It decorates what :func:`float_function` decorates.

    Args:
        function: a callable, or a module, which stays the same object. Its parameters are not changed.

    Returns:
        The module itself, or a function with the same signature.

    Raises:
        TypeError: a class was given, or something that cannot be called.
    """
    return in_precision(function, "half")


def promote_function(function: T) -> T:
    """Runs a function or a module in the widest type among its tensors, with autocast off.

    For a function of several tensors that must have one type: of float16, bfloat16 and float32 tensors among the
    arguments all get the widest type that occurs (float32 where float16 meets bfloat16); others stay. Inert at
    O0, before ``amp.init`` and in ``amp.disable_casts()``. It decorates what :func:`float_function` decorates.

    Args:
        function: a callable, or a module, which stays the same object. Its parameters are not changed.

    Returns:
        The module itself, or a function with the same signature.

    Raises:
        TypeError: a class was given, or something that cannot be called.
    """
    return in_precision(function, "promote")


def in_precision(function: T, precision: Precision) -> T:
    """``function`` with its tensors cast as ``precision`` says; see :func:`float_function`."""
    if isinstance(function, nn.Module):
        forward = function.__dict__.get("forward")
        if not (isinstance(forward, _FixedForward) and forward.precision == precision):
            function.forward = _FixedForward(function, forward, precision)
        return function
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(in_precision(function.__func__, precision))
    if isinstance(function, type):
        raise TypeError(
            f"amp.{precision}_function got the class {function.__name__}; give it an instance: {function.__name__}()"
        )
    if not callable(function):
        raise TypeError(f"amp.{precision}_function got {function!r}; allowed: a function or a torch.nn.Module")

    @functools.wraps(function)
    def fixed(*args: Any, **kwargs: Any) -> Any:
        return call_in_precision(function, args, kwargs, precision)

    return fixed  # type: ignore[return-value]


class _FixedForward:
    """A module instance's ``forward``; a class of this file, so that the module can be pickled and copied."""

    def __init__(self, module: nn.Module, forward: Any, precision: Precision) -> None:
        self.module = module
        self.replaced = forward
        self.precision = precision

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self.replaced or functools.partial(type(self.module).forward, self.module)
        return call_in_precision(forward, args, kwargs, self.precision)


def call_in_precision(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], precision: Precision
) -> Any:
    """Calls ``function`` with cast arguments and autocast off, or plainly where nothing may be cast."""
    if not casting():
        return function(*args, **kwargs)
    kinds = {tensor.device.type for tensor in tensors_in((args, kwargs))} | {context.device_type()}
    change = _change(precision, (args, kwargs))
    # a module is the ``self`` of its method, and never data, even where its class is a dataclass
    args = tuple([arg if isinstance(arg, nn.Module) else change(arg) for arg in args])
    kwargs = {name: change(value) for name, value in kwargs.items()}
    with _autocast_off(kinds):
        return function(*args, **kwargs)


def _change(precision: Precision, arguments: Any) -> Callable[[Any], Any]:
    if precision == "float":
        return to_float
    if precision == "half":
        return functools.partial(to_half, dtype=context.half_dtype())
    found = {tensor.dtype for tensor in tensors_in(arguments)} & set(CASTABLE)
    if len(found) < 2:
        return lambda value: value
    dtype = functools.reduce(torch.promote_types, found)
    return functools.partial(map_tensors, lambda x: x.to(dtype) if x.dtype in CASTABLE else x)


@contextmanager
def _autocast_off(kinds: set[str]) -> Iterator[None]:
    with ExitStack() as stack:
        for kind in kinds:
            if kind != "meta" and torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
