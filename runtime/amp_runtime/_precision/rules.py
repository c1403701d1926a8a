"""What can be done with one call of an operation: run it in half, in float32, in the widest type, or refuse it.

A rule gets torch's function, its arguments and the kind of device whose autocast is on. As under autocast, only
float16, bfloat16 and float32 tensors on that device are cast, and what was cast runs with autocast off, so that
nothing inside is cast back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from amp_runtime._core.context import HALF_DTYPES
from amp_runtime._precision.lacking import note

Function = Callable[..., Any]
Rule = Callable[[str, Function, tuple[Any, ...], dict[str, Any]], Any]

CASTABLE = (*HALF_DTYPES, torch.float32)


def in_half(kind: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs it in autocast's half type."""
    return _in_dtype(torch.get_autocast_dtype(kind), kind, function, args, kwargs)


def in_float(kind: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs it in float32, unless the call says a dtype."""
    if kwargs.get("dtype") is not None or any(isinstance(arg, torch.dtype) for arg in args):
        return function(*args, **kwargs)
    return _in_dtype(torch.float32, kind, function, args, kwargs)


def in_float_for_lack(kind: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs it in float32 because the device lacks it in autocast's half type, which the user is told once."""
    note(kind, torch.get_autocast_dtype(kind))
    return in_float(kind, function, args, kwargs)


def in_float_but_area(kind: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Interpolates in float32, except in the mode ``area``."""
    if "area" in (kwargs.get("mode"), *args[3:4]):
        return function(*args, **kwargs)
    return in_float(kind, function, args, kwargs)


def in_widest(kind: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs it in the widest type among its tensors."""
    dtype = widest(kind, (args, kwargs))
    return function(*args, **kwargs) if dtype is None else _in_dtype(dtype, kind, function, args, kwargs)


def in_place_in_half(kind: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Computes what is written into the first argument in autocast's half type."""
    return _in_place(torch.get_autocast_dtype(kind), kind, function, args, kwargs)


def in_place_in_float(kind: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Computes what is written into the first argument in float32."""
    return _in_place(torch.float32, kind, function, args, kwargs)


def in_type_of_input(kind: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Gives results that autocast made float32 the half type of the first tensor back."""
    first = args[0] if args else kwargs.get("input")
    result = function(*args, **kwargs)
    if isinstance(first, torch.Tensor) and first.dtype in HALF_DTYPES:
        return cast(result, first.dtype, kind)
    return result


def refused(kind: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Raises, as autocast on CUDA does for ``binary_cross_entropy``."""
    if widest(kind, (args, kwargs)) is None:
        return function(*args, **kwargs)
    raise RuntimeError(
        f"torch.nn.functional.{function.__name__} and torch.nn.BCELoss are unsafe in mixed precision: a probability "
        "that rounds to 0 or 1 in half has an infinite loss. CUDA's autocast refuses them as well. Use "
        "torch.nn.BCEWithLogitsLoss on the logits, or amp.float_function(criterion)."
    )


def cast(value: Any, dtype: torch.dtype, kind: str) -> Any:
    """``value`` with the tensors that autocast would cast as ``dtype``, also those in lists and tuples."""
    if isinstance(value, torch.Tensor):
        if value.dtype is not dtype and value.dtype in CASTABLE and value.device.type == kind:
            return value.to(dtype)
        return value
    if type(value) in (list, tuple):
        return type(value)([cast(item, dtype, kind) for item in value])
    return value


def castable(kind: str, value: Any) -> list[torch.Tensor]:
    """The tensors in ``value`` that autocast would cast."""
    if isinstance(value, torch.Tensor):
        return [value] if value.dtype in CASTABLE and value.device.type == kind else []
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in castable(kind, item)] if type(value) in (list, tuple) else []


def widest(kind: str, value: Any) -> torch.dtype | None:
    """The widest type among the tensors that autocast would cast; ``None`` without any."""
    found = None
    for tensor in castable(kind, value):
        found = tensor.dtype if found is None else torch.promote_types(found, tensor.dtype)
    return found


def _in_dtype(dtype: torch.dtype, kind: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("out") is not None:  # autocast leaves these alone: the type of the result is given
        return function(*args, **kwargs)
    args = tuple([cast(arg, dtype, kind) for arg in args])
    if kwargs:
        kwargs = {name: cast(value, dtype, kind) for name, value in kwargs.items()}
    return closed(kind, function, args, kwargs)


def _in_place(dtype: torch.dtype, kind: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not args or not castable(kind, args[0]):
        return function(*args, **kwargs)
    result = _in_dtype(dtype, kind, function, args, kwargs)
    return result if args[0].dtype is dtype else args[0].copy_(result)


def closed(kind: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs it with autocast off."""
    torch.set_autocast_enabled(kind, False)
    try:
        return function(*args, **kwargs)
    finally:
        torch.set_autocast_enabled(kind, True)
