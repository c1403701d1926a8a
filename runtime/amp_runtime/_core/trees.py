"""Walks through nested containers of tensors."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

from amp_runtime._core.context import HALF_DTYPES


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Applies ``change`` to every tensor in nested tuples, named tuples, lists, mappings and dataclasses.

    Containers are rebuilt as their own type, and only where a tensor in them changed: when ``change`` returns
    every tensor as it was, the very same object comes back. Objects of other classes are left alone.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return _map_mapping(change, value)
    if isinstance(value, (tuple, list)):
        items = [map_tensors(change, item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return rebuild_sequence(value, items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _map_dataclass(change, value)
    return value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested containers, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for entry in dataclasses.fields(value):
            yield from tensors_in(getattr(value, entry.name, None))


def to_float(value: Any) -> Any:
    """The same structure with half-precision tensors as float32."""
    return map_tensors(_half_to_float, value)


def to_half(value: Any, dtype: torch.dtype) -> Any:
    """The same structure with float32 tensors as ``dtype``; float64 stays, as under autocast."""
    return map_tensors(lambda x: x.to(dtype) if x.dtype is torch.float32 else x, value)


def _half_to_float(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in HALF_DTYPES else tensor


def rebuild_sequence(old: Any, items: list[Any]) -> Any:
    """A list or tuple of the same kind that holds ``items``."""
    make = getattr(type(old), "_make", None)
    if make is not None:  # a named tuple, whose constructor takes its fields one by one
        return make(items)
    if isinstance(old, list) and type(old) is not list:
        clone = copy.copy(old)
        clone[:] = items
        return clone
    return type(old)(items)


def _map_mapping(change: Callable[[torch.Tensor], torch.Tensor], value: Mapping[Any, Any]) -> Any:
    changed = {}
    for key, old in value.items():
        new = map_tensors(change, old)
        if new is not old:
            changed[key] = new
    if not changed:
        return value
    if isinstance(value, MutableMapping):  # a copy keeps defaultdict's factory and a model output's attributes
        clone = copy.copy(value)
        for key, new in changed.items():
            clone[key] = new
        return clone
    return {**value, **changed}


def _map_dataclass(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    changed = {}
    for entry in dataclasses.fields(value):
        old = getattr(value, entry.name, None)
        new = map_tensors(change, old)
        if new is not old:
            changed[entry.name] = new
    if not changed:
        return value
    clone = copy.copy(value)
    for name, new in changed.items():
        object.__setattr__(clone, name, new)  # frozen dataclasses refuse the ordinary way
    return clone
