"""Many tensors sent as one vector: gradients, parameters, and what a script hands to Apex's helpers.

It lies below ``apex.parallel`` and ``apex.amp``, because both send: a wrapper during the backward pass, ``amp`` with
``combine_ddp``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from amp_runtime._distributed.exchange import Exchange, real_view
from amp_runtime._distributed.group import flag_device


def flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One vector with the elements of all tensors, which have one type."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflatten(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Views of ``flat`` in the shapes of ``tensors``."""
    pieces = torch.split(flat[: sum(tensor.numel() for tensor in tensors)], [tensor.numel() for tensor in tensors])
    return tuple(piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True))


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
    for bucket in buckets_of(list(parameters), None, frozenset()):
        bucket.launch(_AVERAGE, False)
        bucket.finish(_AVERAGE, False)


# All of the division after the sum, as Apex does by default.
_AVERAGE = Exchange(predivide=1.0)


def world_size() -> int:
    """The number of processes; 1 where there is no process group, so that a script alone needs none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@dataclass
class Bucket:
    """Parameters whose gradients travel together.

    Behind the gradients travels, for each parameter, whether this rank has one: a rank without takes part with zeros,
    and learns whether any other had one. So all ranks send the same buckets, whatever they used of the model.
    """

    parameters: list[torch.Tensor]
    waiting: set[int] = field(default_factory=set)
    flat: torch.Tensor | None = None
    work: Any = None

    def await_all(self) -> None:
        """Begins a backward pass: no gradient has arrived."""
        self.waiting = {id(parameter) for parameter in self.parameters}

    @torch.no_grad()
    def launch(self, exchange: Exchange, overlap: bool) -> None:
        """Starts the sum."""
        pieces = []
        for parameter in self.parameters:
            gradient = parameter.grad
            if gradient is None:
                gradient = torch.zeros_like(parameter)
            pieces.append(real_view(gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()))
        has = [float(parameter.grad is not None) for parameter in self.parameters]
        flat = flatten([*pieces, torch.tensor(has, dtype=pieces[0].dtype, device=pieces[0].device)])
        divisor, _ = exchange.factors(world_size())
        self.flat = exchange.widen(flat)  # before the division, which rounds
        if divisor != 1.0:
            self.flat /= divisor
        self.work = dist.all_reduce(self.flat, async_op=overlap)

    @torch.no_grad()
    def finish(self, exchange: Exchange, retain: bool) -> torch.Tensor:
        """Waits for the sum and writes it into the gradients; returns the vector of gradients."""
        assert self.flat is not None
        if self.work is not None:
            self.work.wait()
        _, after = exchange.factors(world_size())
        flat, self.flat, self.work = self.flat, None, None
        present = flat[flat.numel() - len(self.parameters) :]
        # Asking the other ranks' flags waits for the device, so only where this rank lacks a gradient.
        absent = any(parameter.grad is None for parameter in self.parameters)
        anywhere = (present != 0).tolist() if absent else [True] * len(self.parameters)
        flat = flat[: flat.numel() - len(self.parameters)]
        if after != 1.0:
            flat *= after
        flat = flat.to(real_view(self.parameters[0].detach()).dtype)
        shapes = [real_view(parameter.detach()) for parameter in self.parameters]
        for parameter, mean, used in zip(self.parameters, unflatten(flat, shapes), anywhere, strict=True):
            if used:
                _write(parameter, torch.view_as_complex(mean) if parameter.is_complex() else mean, retain)
        return flat


def _write(parameter: torch.Tensor, mean: torch.Tensor, retain: bool) -> None:
    if parameter.grad is not None and parameter.grad.is_sparse:
        parameter.grad = mean.to_sparse(1)
    elif retain:
        parameter.grad = mean
    elif parameter.grad is None:
        parameter.grad = mean.clone()
    else:
        parameter.grad.copy_(mean)


def buckets_of(parameters: list[torch.Tensor], message_size: int | None, triggers: frozenset[int]) -> list[Bucket]:
    """Parameters in buckets of one type and device, last ones first: their gradients come first."""
    buckets: list[Bucket] = []
    kind: Any = None
    size = 0
    ordered = parameters[::-1]
    if message_size is None:  # one message a type, so types need not stay in order
        ordered.sort(key=lambda parameter: str((parameter.dtype, parameter.device)))
    for parameter in ordered:
        if (parameter.dtype, parameter.device) != kind or (message_size is not None and size >= message_size):
            buckets.append(Bucket([]))
            kind, size = (parameter.dtype, parameter.device), 0
        buckets[-1].parameters.append(parameter)
        size += parameter.numel()
        if id(parameter) in triggers:
            kind = None
    return buckets
