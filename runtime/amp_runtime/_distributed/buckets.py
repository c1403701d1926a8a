"""Gradients that travel as one vector, and whether each of them exists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from amp_runtime._distributed.exchange import Exchange, real_view

_SPARSE = 4.0
"""What stands for a sparse gradient, times the number of ranks: more than dense ones of all of them sum up to."""


def flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One vector with the elements of all tensors, which have one type."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflatten(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Views of ``flat`` in the shapes of ``tensors``."""
    pieces = torch.split(flat[: sum(tensor.numel() for tensor in tensors)], [tensor.numel() for tensor in tensors])
    return tuple(piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True))


def world_size() -> int:
    """The number of processes; 1 where there is no process group, so that a script alone needs none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@dataclass
class Bucket:
    """Parameters whose gradients travel together.

    Behind the gradients travels, for each parameter, whether this rank has one: a rank without takes part with zeros,
    and learns whether any other had one. So all ranks send the same buckets, whatever they used of the model. Sparse
    gradients stay sparse, but travel dense.
    """

    parameters: list[torch.Tensor]
    waiting: set[int] = field(default_factory=set)
    flat: torch.Tensor | None = None
    dtype: torch.dtype | None = None
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
        exist = torch.ones(len(pieces), dtype=pieces[0].dtype, device=pieces[0].device)
        for place, parameter in enumerate(self.parameters):
            if parameter.grad is None or parameter.grad.is_sparse:
                exist[place] = 0.0 if parameter.grad is None else _SPARSE * world_size()
        flat = flatten([*pieces, exist])
        self.dtype = flat.dtype
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
        divisor, after = exchange.factors(world_size())
        flat, self.flat, self.work = self.flat, None, None
        present = flat[flat.numel() - len(self.parameters) :]
        # Asking the other ranks' flags waits for the device, so only where this rank lacks a gradient.
        absent = any(parameter.grad is None for parameter in self.parameters)
        anywhere = present.tolist() if absent else [1.0] * len(self.parameters)
        flat = flat[: flat.numel() - len(self.parameters)]
        if after != 1.0:
            flat *= after
        flat = flat.to(self.dtype)
        shapes = [real_view(parameter.detach()) for parameter in self.parameters]
        for parameter, mean, used in zip(self.parameters, unflatten(flat, shapes), anywhere, strict=True):
            if used:
                sparse = parameter.grad is None and used * divisor > 2 * world_size()
                _write(parameter, torch.view_as_complex(mean) if parameter.is_complex() else mean, retain, sparse)
        return flat


def _write(parameter: torch.Tensor, mean: torch.Tensor, retain: bool, sparse: bool) -> None:
    if sparse or (parameter.grad is not None and parameter.grad.is_sparse):
        parameter.grad = mean.to_sparse(1)
    elif retain:
        parameter.grad = mean
    elif parameter.grad is None:
        parameter.grad = mean.clone()
    else:
        parameter.grad.copy_(mean)


def buckets_of(
    parameters: list[torch.Tensor], message_size: int | None, triggers: frozenset[int] = frozenset()
) -> list[Bucket]:
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
