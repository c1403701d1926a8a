"""Ascend's NpuFusedRMSpropTF: RMSprop as TensorFlow computes it (Tieleman and Hinton, 2012)."""

from __future__ import annotations

from typing import Any

import torch

from amp_runtime.optim import _checks
from amp_runtime.optim._base import Base, Batch


class NpuFusedRMSpropTF(Base):
    """RMSprop whose mean of squares begins with 1 and whose ``eps`` is inside the root.

    Args:
        params: tensors, or dicts of group options; floating, of any shape. Half ones are updated in float32 and
            have float32 state.
        lr: the learning rate, at least 0.
        alpha: decay rate of the running mean of squares, at least 0.
        eps: added inside the root, at least 0.
        weight_decay: at least 0.
        momentum: at least 0.
        centered: divide by an estimate of the variance.
        decoupled_decay: decay the weights by ``weight_decay`` itself, not times ``lr``; otherwise an L2 penalty.
        lr_in_momentum: multiply by ``lr`` what enters the momentum, instead of what leaves it.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.9,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        decoupled_decay: bool = False,
        lr_in_momentum: bool = True,
    ) -> None:
        numbers = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum}
        for name, value in numbers.items():
            _checks.number("NpuFusedRMSpropTF", name, value)
        flags = {"centered": centered, "decoupled_decay": decoupled_decay, "lr_in_momentum": lr_in_momentum}
        super().__init__(params, {**numbers, **flags})

    def _update(self) -> None:
        for group in self.param_groups:
            for batch in self._batches(group):
                _step(batch, group)


def _step(batch: Batch, group: dict[str, Any]) -> None:
    values, gradients = batch.values, batch.gradients
    if group["weight_decay"] and group["decoupled_decay"]:
        torch._foreach_mul_(values, 1 - group["weight_decay"])
    elif group["weight_decay"]:
        gradients = list(torch._foreach_add(gradients, values, alpha=group["weight_decay"]))
    for state, value in zip(batch.states, values, strict=True):
        if "square_avg" not in state:
            state["square_avg"] = torch.ones_like(value)
    squares = batch.buffers("square_avg")
    torch._foreach_lerp_(squares, torch._foreach_mul(gradients, gradients), 1 - group["alpha"])
    roots = torch._foreach_add(squares, group["eps"])
    if group["centered"]:
        means = batch.buffers("grad_avg")
        torch._foreach_lerp_(means, gradients, 1 - group["alpha"])
        torch._foreach_addcmul_(roots, means, means, value=-1.0)
    torch._foreach_sqrt_(roots)
    steps = torch._foreach_div(gradients, roots)
    if not group["momentum"] or group["lr_in_momentum"]:
        torch._foreach_mul_(steps, group["lr"])
    if group["momentum"]:
        velocities = batch.buffers("momentum_buffer")
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, steps)
        steps = tuple(velocities) if group["lr_in_momentum"] else torch._foreach_mul(velocities, group["lr"])
    torch._foreach_sub_(values, steps)
