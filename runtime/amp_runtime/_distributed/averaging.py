"""Gradients that are averaged over the processes once, just before the optimizer's step.

For models prepared with ``delay_allreduce=True``. Averaging is idempotent on gradients that agree already, so
what is left from an averaged step and accumulated further stays right: ``mean(a + b_rank) == a +
mean(b_rank)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist

from amp_runtime._core.context import context
from amp_runtime._core.registry import TensorMap
from amp_runtime._distributed.exchange import Exchange
from amp_runtime._distributed.group import flag_device

_BUCKET_BYTES = 32 * 2**20
_ABSENT, _DENSE, _SPARSE = 0, 1, 2
_PLAIN = Exchange()

_delayed: TensorMap[Exchange] = TensorMap()


def delay(parameters: Iterable[torch.Tensor], exchange: Exchange = _PLAIN) -> None:
    """Marks parameters whose gradients are averaged at the step, and how they travel."""
    for parameter in parameters:
        _delayed[parameter] = exchange


def delayed(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those of ``parameters`` that are marked, in order and without repetition; none in a single process."""
    if not context.distributed or not _delayed:
        return []
    return list({id(p): p for p in parameters if p in _delayed}.values())


def travel_plainly(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether these marked parameters' gradients are simply averaged, so that :func:`average_tensors` does the same."""
    return all((_delayed.get(parameter) or _PLAIN) == _PLAIN for parameter in parameters)


def average_gradients(parameters: list[torch.Tensor]) -> None:
    """Replaces each parameter's gradient by its mean over the processes. A collective.

    A gradient that exists on some ranks only counts as zero on the others and then exists on all; one that
    exists nowhere stays ``None``. Sparse gradients stay sparse, but travel dense.
    """
    kinds = _agree_on_kinds(parameters)
    present = [p for p, kind in zip(parameters, kinds, strict=True) if kind != _ABSENT]
    with torch.no_grad():
        _average([(_dense_gradient(parameter), _delayed.get(parameter) or _PLAIN) for parameter in present])
        for parameter, kind in zip(parameters, kinds, strict=True):
            if kind == _SPARSE and parameter.grad is not None:
                parameter.grad = parameter.grad.to_sparse(1)


def average_tensors(tensors: Sequence[torch.Tensor]) -> None:
    """Replaces dense tensors by their means over the processes, in place. A collective."""
    with torch.no_grad():
        _average([(tensor.detach(), _PLAIN) for tensor in tensors])


def _average(gradients: list[tuple[torch.Tensor, Exchange]]) -> None:
    bucket: list[torch.Tensor] = []
    kind: tuple[torch.dtype, torch.device, Exchange] | None = None
    size = 0
    for gradient, exchange in gradients:
        limit = _BUCKET_BYTES if exchange.message_size is None else exchange.message_size * gradient.element_size()
        if bucket and (kind != (gradient.dtype, gradient.device, exchange) or size >= limit):
            _average_bucket(bucket, kind[2] if kind else _PLAIN)
            bucket, size = [], 0
        kind = (gradient.dtype, gradient.device, exchange)
        bucket.append(gradient)
        size += gradient.numel() * gradient.element_size()
    if bucket and kind:
        _average_bucket(bucket, kind[2])


def _agree_on_kinds(parameters: list[torch.Tensor]) -> list[int]:
    """For each parameter the strongest of absent, dense and sparse over the ranks, so that all act alike."""
    own = [_ABSENT if p.grad is None else _SPARSE if p.grad.is_sparse else _DENSE for p in parameters]
    flags = torch.tensor(own, dtype=torch.int32, device=flag_device())
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    agreed: list[int] = flags.tolist()
    return agreed


def _dense_gradient(parameter: torch.Tensor) -> torch.Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    elif parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_dense()
    return parameter.grad


def _average_bucket(gradients: list[torch.Tensor], exchange: Exchange) -> None:
    flat = exchange.widen(torch.cat([_real(gradient).reshape(-1) for gradient in gradients]))
    divisor, after = exchange.factors(context.world_size)
    flat /= divisor  # by default all of the division, so that float16 does not overflow in the sum
    dist.all_reduce(flat)
    if after != 1.0:
        flat *= after
    offset = 0
    for gradient in gradients:
        view = _real(gradient)
        view.copy_(flat[offset : offset + view.numel()].view(view.shape))
        offset += view.numel()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
