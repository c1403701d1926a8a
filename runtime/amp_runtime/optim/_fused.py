"""The choice of torch's fused kernels, made at each step.

It cannot be made when the optimizer is built: scripts move the model to the GPU afterwards, gradients may
turn out sparse, and a checkpoint brings its own settings. The groups say ``fused=None`` outside the step, so
that the state stays that of torch's own optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from amp_runtime._core.context import context
from amp_runtime._core.versions import FUSED_ADAGRAD_ON_CUDA

FUSED_DEVICES: dict[str, set[str]] = {
    "Adam": {"cpu", "cuda"},
    "AdamW": {"cpu", "cuda"},
    "SGD": {"cpu", "cuda"},
    "Adagrad": {"cpu", "cuda"} if FUSED_ADAGRAD_ON_CUDA else {"cpu"},
}
"""Where torch has a fused kernel, by optimizer."""


def own_step(kind: type[torch.optim.Optimizer]) -> Any:
    """torch's ``step`` of ``kind`` without the profiling wrapper, which would run step hooks twice."""
    step: Any = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


@contextmanager
def fused_kernels(optimizer: torch.optim.Optimizer, name: str) -> Iterator[None]:
    """Uses fused kernels inside, for the groups that can; does nothing at O0."""
    chosen = []
    if context.mixed:
        devices = FUSED_DEVICES[name]
        chosen = [group for group in optimizer.param_groups if _suits(optimizer, group, devices)]
    for group in chosen:
        _move_state(optimizer, group)
        group["fused"] = True
    try:
        yield
    finally:
        for group in chosen:
            group["fused"] = None


def _suits(optimizer: torch.optim.Optimizer, group: dict[str, Any], devices: set[str]) -> bool:
    if group.get("fused") is not None or group.get("foreach") is not None:
        return False  # the caller has chosen
    if group.get("capturable") or group.get("differentiable"):
        return False
    if any(isinstance(group.get(key), torch.Tensor) for key in ("lr", "weight_decay")):
        return False
    if any(isinstance(beta, torch.Tensor) for beta in group.get("betas", ())):
        return False
    parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
    if not all(_takes(parameter, parameter.grad) for parameter in parameters):
        return False
    if any(device.type not in devices for device in {parameter.device for parameter in parameters}):
        return False
    if not group.get("momentum"):
        return True
    # torch's fused SGD cannot start one parameter's momentum after another's.
    return len({optimizer.state[p].get("momentum_buffer") is not None for p in parameters}) < 2


def _takes(parameter: torch.Tensor, gradient: torch.Tensor) -> bool:
    if not is_plain(parameter) or gradient.layout is not torch.strided or not parameter.is_floating_point():
        return False
    return laid_out_alike(parameter, gradient)


def _move_state(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """Brings state made or loaded elsewhere to where and how the fused kernels read it."""
    for parameter in group["params"]:
        state = optimizer.state.get(parameter)
        if not state:
            continue
        device, stride = parameter.device, parameter.stride()
        for key, value in state.items():
            if not isinstance(value, torch.Tensor):
                continue
            if key == "step":
                if value.dtype is not torch.float32 or value.device != device:
                    state[key] = value.to(device, torch.float32)
            elif value.device != device or (value.stride() != stride and value.shape == parameter.shape):
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether this is a tensor as such, and not of a subclass, a shard for instance, for which kernels may lack."""
    return type(tensor) is torch.nn.Parameter or type(tensor) is torch.Tensor


def laid_out_alike(first: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether the tensors fill their memory without gaps and in the same order.

    torch's fused kernels walk through memory and never look at strides: a gradient in another memory format, or
    state from before the model became ``channels_last``, would silently be applied to the wrong elements.
    """
    stride = first.stride()
    for other in others:
        if other.stride() != stride:
            return False
    if first.is_contiguous():
        return True
    if first.dim() == 4:
        return first.is_contiguous(memory_format=torch.channels_last)
    return first.dim() == 5 and first.is_contiguous(memory_format=torch.channels_last_3d)
