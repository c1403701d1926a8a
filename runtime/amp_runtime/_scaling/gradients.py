"""Arithmetic on all gradients of an optimizer at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import torch

from amp_runtime._core.capabilities import UNSCALE, lacks
from amp_runtime._core.context import HALF_DTYPES
from amp_runtime._core.dtensors import local

HELD_AS = ("optimizer", "_optimizer", "optim")
"""Under which names objects around an optimizer hold it."""
_is_sparse = attrgetter("is_sparse")
_dtype = attrgetter("dtype")
_kind = attrgetter("device", "dtype", "layout", "__class__")


def inner_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The torch optimizer in an object like ``NoamOpt`` or ``LARC``, or the object itself.

    Raises:
        TypeError: there is none.
    """
    seen = optimizer
    for _ in range(3):
        if hasattr(seen, "param_groups"):
            inner: torch.optim.Optimizer = seen
            return inner
        seen = next((getattr(seen, name) for name in HELD_AS if hasattr(seen, name)), None)
    raise TypeError(
        f"amp.scaler got {optimizer!r} as an optimizer; allowed: a torch optimizer, or an object that holds "
        "one as its attribute `optimizer`"
    )


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters of all groups, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def gradients_of(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients that exist."""
    return [gradient for parameter in parameters if (gradient := parameter.grad) is not None]


def have_gradients(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether any gradient exists."""
    return any(parameter.grad is not None for parameter in parameters)


def coalesced_gradients_of(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The gradients that exist; those that are sparse with repeated indices summed, which may overflow only then."""
    parameters = list(parameters)
    gradients = gradients_of(parameters)
    if any(map(_is_sparse, gradients)):
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None and gradient.is_sparse and not gradient.is_coalesced():
                parameter.grad = gradient.coalesce()
        gradients = gradients_of(parameters)
    return gradients


def values(gradient: torch.Tensor) -> torch.Tensor:
    """The numbers in a gradient as a real, dense tensor that shares its memory; of a shard those of this rank."""
    dense = gradient._values() if gradient.is_sparse else local(gradient)
    return torch.view_as_real(dense) if dense.is_complex() else dense


def is_finite(gradient: torch.Tensor) -> bool:
    """Whether a gradient, or any other tensor, holds neither an infinity nor NaN."""
    return bool(torch.isfinite(values(gradient.detach())).all())


def clear_if(gradients: Iterable[torch.Tensor], flag: torch.Tensor) -> None:
    """Sets gradients to zero, in place, where a flag of one element is not 0; does not wait for the device."""
    with torch.no_grad():
        for gradient in gradients:
            numbers = values(gradient)
            numbers.masked_fill_(flag.to(numbers.device) != 0, 0.0)


def multiply(gradients: list[torch.Tensor], factor: Callable[[torch.device], torch.Tensor] | None) -> torch.Tensor:
    """Multiplies gradients in place, and checks them in the same pass over the memory.

    Dense, sparse (coalesced), sharded and complex gradients of any floating dtypes and devices may be mixed.

    Args:
        gradients: the tensors; an empty list is allowed.
        factor: gives what to multiply by, a float32 tensor of one element, for a device; ``None`` only checks.

    Returns:
        A float32 tensor of shape ``()``: 1.0 if a gradient held an infinity or NaN before, else 0.0. It lies on the
        device of the first gradients. Of shards it tells what this rank holds.
    """
    if not gradients:
        return torch.zeros((), dtype=torch.float32)
    kinds = set(map(_kind, gradients))
    with torch.no_grad():
        if len(kinds) == 1:
            ((device, dtype, layout, kind),) = kinds
            if dtype is torch.float32 and layout is torch.strided and kind is torch.Tensor:  # nearly always
                return _multiply_on(device, gradients, factor)
        first_device = gradients[0].device
        gradients = [part for gradient in gradients if (part := values(gradient)).numel()]  # a shard may be empty
        if not gradients:
            return torch.zeros((), dtype=torch.float32, device=first_device)
        groups: dict[torch.device, list[torch.Tensor]] = {}
        for gradient in gradients:
            groups.setdefault(gradient.device, []).append(gradient)
        first, *others = [_multiply_kinds(device, group, factor) for device, group in groups.items()]
        for other in others:
            first = torch.maximum(first, other.to(first.device))
        return first


def _multiply_kinds(
    device: torch.device, gradients: list[torch.Tensor], factor: Callable[[torch.device], torch.Tensor] | None
) -> torch.Tensor:
    """The same for gradients of any types, with float32 copies of those that the kernel does not take on this device.

    The numbers are the same: the kernel computes in float32 and rounds at the end.
    """
    halves = set(map(_dtype, gradients)).intersection(HALF_DTYPES)
    refused = {dtype for dtype in halves if lacks(UNSCALE, device.type, dtype, by_autocast=False)}
    if not refused or (factor is None and device.type != "cpu"):
        return _multiply_on(device, gradients, factor)
    wide = [gradient.float() if gradient.dtype in refused else gradient for gradient in gradients]
    found = _multiply_on(device, wide, factor)
    torch._foreach_copy_(gradients, wide)
    return found


def _multiply_on(
    device: torch.device, gradients: list[torch.Tensor], factor: Callable[[torch.device], torch.Tensor] | None
) -> torch.Tensor:
    if factor is None and device.type != "cpu":
        # Reading is half of what the kernel below moves.
        largest = torch.stack([norm.float() for norm in torch._foreach_norm(gradients, math.inf)]).amax()
        return largest.isfinite().logical_not_().float()
    found = torch.zeros((), dtype=torch.float32, device=device)
    multiplier = torch.ones((), dtype=torch.float32, device=device) if factor is None else factor(device)
    # One kernel for all on CUDA, one short call per tensor on the CPU: a quarter of what _foreach_mul_ takes.
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, multiplier)
    return found


def closure_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """The closure among the arguments of ``optimizer.step``."""
    candidate = args[0] if args else kwargs.get("closure")
    return candidate if callable(candidate) else None
