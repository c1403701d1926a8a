"""Many tensors sent as one vector: gradients, parameters, and what a script hands to Apex's helpers.

It lies below ``apex.parallel`` and ``apex.amp``, because both send: a wrapper during the backward pass, ``amp`` with
``combine_ddp``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from amp_runtime._distributed.buckets import buckets_of, flatten, unflatten, world_size
from amp_runtime._distributed.exchange import Exchange, real_view
from amp_runtime._distributed.group import flag_device


def apply_flat_dist_call(bucket: Sequence[torch.Tensor], call: Callable[..., Any], extra_args: Any = None) -> None:
    """Applies a collective to tensors of one type as one vector, in place; sums become means.

    Args:
        bucket: the tensors.
        call: a function of ``torch.distributed`` that works in place. For ``all_reduce`` the mean is taken.
        extra_args: further positional arguments for it.
    """
    coalesced = flatten([tensor.detach() for tensor in bucket])
    call(coalesced, *(extra_args or ()))
    if call is dist.all_reduce:
        coalesced /= dist.get_world_size()
    with torch.no_grad():
        for tensor, synced in zip(bucket, unflatten(coalesced, bucket), strict=True):
            tensor.copy_(synced)


def split_half_float_double(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The tensors by type: float16, bfloat16, float32, float64; without empty lists."""
    tensors = list(tensors)
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    buckets = [[tensor for tensor in tensors if tensor.dtype is kind] for kind in kinds]
    return [bucket for bucket in buckets if bucket]


def split_by_type(tensors: Iterable[torch.Tensor]) -> OrderedDict[str, list[torch.Tensor]]:
    """The tensors by ``tensor.type()``, in order."""
    buckets: OrderedDict[str, list[torch.Tensor]] = OrderedDict()
    for tensor in tensors:
        buckets.setdefault(tensor.type(), []).append(tensor)
    return buckets


def flat_dist_call(tensors: Iterable[torch.Tensor], call: Callable[..., Any], extra_args: Any = None) -> None:
    """Applies a collective to tensors of any types in place, one vector a type; see ``apply_flat_dist_call``."""
    for bucket in split_by_type(tensors).values():
        apply_flat_dist_call(bucket, call, extra_args)


def broadcast(tensors: Iterable[torch.Tensor], source: int = 0) -> None:
    """Copies one rank's tensors to all ranks. A collective; does nothing alone."""
    if world_size() == 1:
        return
    with torch.no_grad():
        for bucket in split_by_type([real_view(tensor.detach()) for tensor in tensors]).values():
            flat = flatten([tensor.to(flag_device(tensor.device)) for tensor in bucket])
            dist.broadcast(flat, source)
            for tensor, sent in zip(bucket, unflatten(flat, bucket), strict=True):
                tensor.copy_(sent)


def average(parameters: Iterable[torch.Tensor]) -> None:
    """Replaces gradients by their means over all ranks. A collective; does nothing alone."""
    if world_size() == 1:
        return
    for bucket in buckets_of(list(parameters), None):
        bucket.launch(_AVERAGE, False)
        bucket.finish(_AVERAGE, False)


# All of the division after the sum, as Apex does by default.
_AVERAGE = Exchange(predivide=1.0)
