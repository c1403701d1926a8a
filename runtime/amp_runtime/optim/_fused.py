"""The choice of torch's fused kernels, made at each step.

It cannot be made when the optimizer is built: scripts move the model to the GPU afterwards, gradients may
turn out sparse, and a checkpoint brings its own settings. The groups say ``fused=None`` outside the step, so
that the state stays that of torch's own optimizer.
"""

from __future__ import annotations

import weakref
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


_placed: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[int, tuple[Any, ...]]] = weakref.WeakKeyDictionary()
"""For each parameter by identity, where and how it lay when its state was brought there, and which state."""


def fusable_groups(optimizer: torch.optim.Optimizer, kind: type[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """The groups that the fused kernel of ``kind``, one of torch's optimizers, can step now; none at O0."""
    if not context.mixed:
        return []
    devices = FUSED_DEVICES[kind.__name__]
    return [group for group in optimizer.param_groups if _suits(optimizer, group, devices)]


@contextmanager
def fused_kernels(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> Iterator[None]:
    """Uses fused kernels inside, for these groups."""
    placed = _placed.setdefault(optimizer, {})
    for group in groups:
        _move_state(optimizer, group, placed)
        group["fused"] = True
    try:
        yield
    finally:
        for group in groups:
            group["fused"] = None


class Fused(torch.optim.Optimizer):
    """What makes a subclass of one of torch's optimizers use its fused kernel from O1 on, for the groups that can."""

    _kind: type[torch.optim.Optimizer]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether the coming step can be skipped on the device; torch sets it where the caller said ``fused``."""
        if self.__dict__.get("_by_caller", False):
            return True
        return len(fusable_groups(self, self._kind)) == len(self.param_groups)

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_by_caller"] = value

    def step(self, closure: Any = None) -> Any:
        """Updates the parameters; ``closure`` reevaluates the model and returns the loss."""
        step: Any = self._kind.step  # without the profiling wrapper, which would run step hooks twice
        with fused_kernels(self, fusable_groups(self, self._kind)):
            return (step.__wrapped__ if getattr(step, "hooked", False) else step)(self, closure)


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
    if any(device.type not in devices for device in {parameter.device for parameter in parameters}):
        return False
    for parameter in parameters:
        gradient = parameter.grad
        if not is_plain(parameter) or gradient.layout is not torch.strided or not parameter.is_floating_point():
            return False
        both = parameter.is_contiguous() and gradient.is_contiguous()
        if not (both or laid_out_alike(parameter, gradient)):
            return False
    if not group.get("momentum"):
        return True
    # torch's fused SGD cannot start one parameter's momentum after another's.
    state = optimizer.state
    return len({state[p].get("momentum_buffer") is not None for p in parameters}) < 2


def _move_state(optimizer: torch.optim.Optimizer, group: dict[str, Any], placed: dict[int, tuple[Any, ...]]) -> None:
    """Brings state made or loaded elsewhere to where and how the fused kernels read it."""
    for parameter in group["params"]:
        state = optimizer.state.get(parameter)
        if not state:
            continue
        device, stride = parameter.device, parameter.stride()
        if placed.get(id(parameter)) == (device, stride, *map(id, state.values())):
            continue
        for key, value in state.items():
            if not isinstance(value, torch.Tensor):
                continue
            if key == "step":
                state[key] = value.to(device, torch.float32)
            elif value.device != device or (value.stride() != stride and value.shape == parameter.shape):
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        placed[id(parameter)] = (device, stride, *map(id, state.values()))


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
