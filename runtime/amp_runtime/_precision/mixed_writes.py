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

from amp_runtime._precision.policy import casting
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

_replaced: list[tuple[Any, str, Any]] = []


def follow(wanted: bool) -> None:
    """Has writes of mixed types convert, or gives torch's own functions back."""
    if wanted and not _replaced:
        for name in _WRITING:
            _replace(torch.Tensor, name, _into_first)
        for name in _GIVING:
            _replace(torch.Tensor, name, _into_widest)
            _replace(torch, name, _into_widest)
        for name in _OF_ONE_TYPE:
            _replace(torch, name, _into_widest)
            if hasattr(torch.Tensor, name):
                _replace(torch.Tensor, name, _into_widest)
        for name in _OF_FIRST:
            _replace(torch, name, _into_first)
    elif _replaced and not wanted:
        while _replaced:
            space, name, own = _replaced.pop()
            if own is None:
                delattr(space, name)
            else:
                setattr(space, name, own)


Types = Callable[[list[torch.Tensor]], torch.dtype]


def _into_first(tensors: list[torch.Tensor]) -> torch.dtype:
    return tensors[0].dtype


def _into_widest(tensors: list[torch.Tensor]) -> torch.dtype:
    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))


def _replace(space: Any, name: str, common: Types) -> None:
    original = getattr(space, name)
    if "amp_original" in getattr(original, "__dict__", ()):
        return  # registered by the script, which chose a precision

    @functools.wraps(original)
    def converting(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not casting():
            return original(*args, **kwargs)
        given = [*args, *kwargs.values()]
        tensors = [value for value in given if isinstance(value, torch.Tensor) and value.dtype in CASTABLE]
        if len(tensors) < 2 or tensors[0] is not given[0] or all(x.dtype is tensors[0].dtype for x in tensors):
            return original(*args, **kwargs)
        dtype = common(tensors)
        args = tuple([_as(value, dtype) for value in args])
        return original(*args, **{key: _as(value, dtype) for key, value in kwargs.items()})

    converting.amp_original = original  # type: ignore[attr-defined]
    _replaced.append((space, name, vars(space).get(name)))
    setattr(space, name, converting)
    if space is torch:
        # TorchScript knows torch's functions by identity, and would try to compile this one.
        torch.jit._builtins._register_builtin(converting, f"aten::{name}")


def _as(value: Any, dtype: torch.dtype) -> Any:
    is_cast = isinstance(value, torch.Tensor) and value.dtype in CASTABLE and value.dtype is not dtype
    return value.to(dtype) if is_cast else value
