"""Gradients that are averaged over the processes once, just before the optimizer's step.

For models prepared with ``delay_allreduce=True``. Averaging is idempotent on gradients that agree already, so
what is left from an averaged step and accumulated further stays right: ``mean(a + b_rank) == a +
mean(b_rank)``.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from amp_runtime._core.context import context
from amp_runtime._core.registry import TensorMap
from amp_runtime._distributed.group import flag_device

_BUCKET_BYTES = 32 * 2**20
_ABSENT, _DENSE, _SPARSE = 0, 1, 2

_delayed: TensorMap[bool] = TensorMap()


def delay(parameters: Iterable[torch.Tensor]) -> None:
    """Marks parameters whose gradients are averaged at the step."""
    for parameter in parameters:
        _delayed[parameter] = True


def delayed(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those of ``parameters`` that are marked, in order and without repetition; none in a single process."""
    if not context.distributed or not _delayed:
        return []
    return list({id(p): p for p in parameters if p in _delayed}.values())


def average_gradients(parameters: list[torch.Tensor]) -> None:
    """Replaces each parameter's gradient by its mean over the processes. A collective.

    A gradient that exists on some ranks only counts as zero on the others and then exists on all; one that
    exists nowhere stays ``None``. Sparse gradients stay sparse, but travel dense.
    """
    kinds = _agree_on_kinds(parameters)
    bucket: list[torch.Tensor] = []
    size = 0
    with torch.no_grad():
        for parameter, kind in zip(parameters, kinds, strict=True):
            if kind == _ABSENT:
                continue
            gradient = _dense_gradient(parameter)
            fits = not bucket or (bucket[0].dtype is gradient.dtype and bucket[0].device == gradient.device)
            if not fits or size > _BUCKET_BYTES:
                _average_bucket(bucket)
                bucket, size = [], 0
            bucket.append(gradient)
            size += gradient.numel() * gradient.element_size()
        if bucket:
            _average_bucket(bucket)
        for parameter, kind in zip(parameters, kinds, strict=True):
            if kind == _SPARSE and parameter.grad is not None:
                parameter.grad = parameter.grad.to_sparse(1)


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


def _average_bucket(gradients: list[torch.Tensor]) -> None:
    flat = torch.cat([_real(gradient).reshape(-1) for gradient in gradients])
    flat /= context.world_size  # before the sum, so that float16 does not overflow in it
    dist.all_reduce(flat)
    offset = 0
    for gradient in gradients:
        view = _real(gradient)
        view.copy_(flat[offset : offset + view.numel()].view(view.shape))
        offset += view.numel()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
