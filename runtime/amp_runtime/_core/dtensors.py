"""Tensors of which each rank holds a part: torch's ``DTensor``, as FSDP2 makes them of parameters.

They are told by what they can do, so that a run without shards imports nothing for them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from amp_runtime._core.rows import has_rows


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is shared out over the ranks."""
    return hasattr(type(tensor), "full_tensor")


def any_sharded(tensors: Iterable[Any]) -> bool:
    """Whether one of them is."""
    return any(map(is_sharded, tensors))


def local(tensor: Any) -> torch.Tensor:
    """What this rank holds of a tensor, in the same memory; the tensor itself if it is whole."""
    if not is_sharded(tensor):
        whole: torch.Tensor = tensor
        return whole
    with torch.no_grad():
        part: torch.Tensor = tensor.to_local()
    return part


def whole(tensor: Any) -> torch.Tensor:
    """The whole tensor, detached; the tensor itself if it is no shard. A collective for shards."""
    full: torch.Tensor = tensor.detach().full_tensor() if is_sharded(tensor) else tensor
    return full


def shard_like(value: torch.Tensor, like: Any) -> torch.Tensor:
    """This rank's shard of a whole ``value``, placed as ``like`` is.

    Every rank takes it of its own value; torch before 2.7 sends rank 0's, which makes it a collective there.
    """
    distribute = _module().distribute_tensor
    own = {"src_data_rank": None} if "src_data_rank" in inspect.signature(distribute).parameters else {}
    placed: torch.Tensor = distribute(value.detach().to(like.device), like.device_mesh, like.placements, **own)
    return placed


def refuse_shards(model: nn.Module, caller: str, *, tables: bool = True) -> None:
    """Refuses a model with sharded parameters where whole ones are meant: each rank has another part of them.

    Args:
        model: the model.
        caller: what is called, for the message.
        tables: whether tables whose rows are shared out are refused as well.

    Raises:
        RuntimeError: it has some.
    """
    if any_sharded(model.parameters()) or (tables and has_rows(model.parameters())):
        raise RuntimeError(
            f"{caller} got a {type(model).__name__} whose parameters are sharded already; allowed: a model with whole "
            "parameters"
        )


def _module() -> Any:
    try:
        return importlib.import_module("torch.distributed.tensor")
    except ImportError:  # torch 2.4 has it, but not yet under its public name
        return importlib.import_module("torch.distributed._tensor")
