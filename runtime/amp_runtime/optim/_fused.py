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

_TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

_FUSED_DEVICES: dict[str, set[str]] = {
    "Adam": {"cpu", "cuda"},
    "AdamW": {"cpu", "cuda"},
    "SGD": {"cpu", "cuda"},
    # Its kernel was for the CPU alone before.
    "Adagrad": {"cpu", "cuda"} if _TORCH >= (2, 13) else {"cpu"},
}


def own_step(kind: type[torch.optim.Optimizer]) -> Any:
    """torch's ``step`` of ``kind`` without the profiling wrapper, which would run step hooks twice."""
    step: Any = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


@contextmanager
def fused_kernels(optimizer: torch.optim.Optimizer, name: str) -> Iterator[None]:
    """Uses fused kernels inside, for the groups that can; does nothing at O0."""
    chosen = []
    if context.mixed:
        devices = _FUSED_DEVICES[name]
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
    with_momentum = set()
    for parameter in group["params"]:
        gradient = parameter.grad
        if gradient is None:
            continue
        if type(parameter) not in (torch.nn.Parameter, torch.Tensor) or gradient.layout is not torch.strided:
            return False
        if not parameter.is_floating_point() or parameter.device.type not in devices:
            return False
        if group.get("momentum"):
            with_momentum.add(optimizer.state[parameter].get("momentum_buffer") is not None)
    # torch's fused SGD cannot start one parameter's momentum after another's.
    return len(with_momentum) < 2


def _move_state(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """Brings state made or loaded elsewhere to where the fused kernels read it."""
    for parameter in group["params"]:
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, torch.Tensor):
                continue
            if value.device != parameter.device or (key == "step" and value.dtype is not torch.float32):
                dtype = torch.float32 if key == "step" else value.dtype
                optimizer.state[parameter][key] = value.to(parameter.device, dtype)
