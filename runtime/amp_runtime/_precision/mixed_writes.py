"""Operations that refuse tensors of two types, as those under autocast are: mostly what writes through an index.

A layer's output is half in a region, and what it is written into was made in float32: ``out.index_add_(0, batch, h)``
raises "self (Float) and source (BFloat16) must have the same scalar type", where ``out[:n] = h`` and ``out += h``
convert. autocast leaves writes alone. In the original both have one type; so what is written takes the type of what it
is written into, and a result of its own has the widest. So has what is made of two parts, as ``torch.complex`` makes
it, and the weights of a bag's samples take the type of its table. Where types agree, and where torch converts by
itself, nothing changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from amp_runtime._precision.rules import CASTABLE

_INDEXED = ("index_add", "index_copy", "index_put", "index_reduce", "lerp", "masked_scatter", "put", "scatter")
_SUMMED = ("scatter_add", "scatter_reduce")
_PRODUCTS = ("addbmm_", "addmm_", "addmv_", "addr_", "baddbmm_")

_WRITING = (*(f"{name}_" for name in (*_INDEXED, *_SUMMED)), *_PRODUCTS, "__setitem__")
"""Methods that write into their tensor. Of products autocast knows those alone that give a tensor of their own."""
_GIVING = (*_INDEXED, *_SUMMED)
"""Their forms that give a tensor of their own, as functions of ``torch`` too."""

_OF_ONE_TYPE = ("allclose", "complex", "heaviside", "isclose", "polar")
"""Functions of two tensors; some are methods, too."""
_OF_FIRST = ("embedding_bag",)
"""Functions whose first tensor is a table of weights."""

Types = Callable[[list[torch.Tensor]], torch.dtype]


def _of_first(tensors: list[torch.Tensor]) -> torch.dtype:
    return tensors[0].dtype


def _widest(tensors: list[torch.Tensor]) -> torch.dtype:
    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))


def _converted(common: Types, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    given = [*args, *kwargs.values()]
    tensors = [value for value in given if isinstance(value, torch.Tensor) and value.dtype in CASTABLE]
    if len(tensors) < 2 or tensors[0] is not given[0] or all(x.dtype is tensors[0].dtype for x in tensors):
        return args, kwargs
    dtype = common(tensors)
    return tuple([_as(value, dtype) for value in args]), {key: _as(value, dtype) for key, value in kwargs.items()}


def _as(value: Any, dtype: torch.dtype) -> Any:
    is_cast = isinstance(value, torch.Tensor) and value.dtype in CASTABLE and value.dtype is not dtype
    return value.to(dtype) if is_cast else value


_INTO_FIRST, _INTO_WIDEST = (functools.partial(_converted, common) for common in (_of_first, _widest))

CHANGES = (
    *((torch.Tensor, name, _INTO_FIRST) for name in _WRITING),
    *((torch, name, _INTO_FIRST) for name in _OF_FIRST),
    *(
        (space, name, _INTO_WIDEST)
        for space in (torch.Tensor, torch)
        for name in (*_GIVING, *_OF_ONE_TYPE)
        if hasattr(space, name)
    ),
)
"""The functions, and what becomes of the arguments of each."""
