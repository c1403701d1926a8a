"""Ascend's NpuFusedBertAdam: Adam as BERT was trained with it (https://arxiv.org/abs/1810.04805, A.2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import required

from amp_runtime.optim import _checks
from amp_runtime.optim._base import Base, with_gradients
from amp_runtime.optim._kernels import directions


def _after_warmup(rest: Callable[[float, float], float]) -> Callable[[float, float], float]:
    return lambda progress, warmup: progress / warmup if progress < warmup else rest(progress, warmup)


SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "warmup_constant": _after_warmup(lambda progress, warmup: 1.0),
    "warmup_cosine": _after_warmup(lambda progress, warmup: 0.5 * (1.0 + math.cos(math.pi * progress))),
    "warmup_linear": _after_warmup(lambda progress, warmup: max((progress - 1.0) / (warmup - 1.0), 0.0)),
    "warmup_poly": _after_warmup(lambda progress, warmup: max(1.0 - progress, 0.0) ** 0.5),
}
"""Factors of the learning rate, by the done part of the training and the part that warms up."""


class NpuFusedBertAdam(Base):
    """Adam without bias correction, with its own schedule of the learning rate and its own clipping.

    Args:
        params: tensors, or dicts of group options; floating, of any shape. Half ones are updated in float32 and
            have float32 state.
        lr: the learning rate, at least 0; required here or in every group.
        warmup: the part of ``t_total`` in which the rate rises, of [0, 1); -1 for none.
        t_total: the number of steps of the training; -1 keeps the rate.
        schedule: ``warmup_linear``, ``warmup_constant``, ``warmup_cosine`` or ``warmup_poly``.
        b1: decay rate of the running mean of the gradient, of [0, 1).
        b2: decay rate of the running mean of its square, of [0, 1).
        e: added to the denominator, at least 0.
        weight_decay: decay of the weights, at least 0.
        max_grad_norm: scale each group's gradients down to this 2-norm; -1 does not.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: Any = required,
        warmup: float = -1,
        t_total: int = -1,
        schedule: str = "warmup_linear",
        b1: float = 0.9,
        b2: float = 0.99,
        e: float = 1e-6,
        weight_decay: float = 0.01,
        max_grad_norm: float = -1,
    ) -> None:
        name = "NpuFusedBertAdam"
        if lr is not required:
            _checks.number(name, "lr", lr)
        if warmup != -1:
            _checks.number(name, "warmup", warmup, below=1.0)
        _checks.choice(name, "schedule", schedule, tuple(SCHEDULES))
        _checks.number(name, "b1", b1, below=1.0)
        _checks.number(name, "b2", b2, below=1.0)
        _checks.number(name, "e", e)
        _checks.number(name, "weight_decay", weight_decay)
        defaults = {
            "lr": lr, "schedule": schedule, "warmup": warmup, "t_total": t_total, "b1": b1, "b2": b2, "e": e,
            "weight_decay": weight_decay, "max_grad_norm": max_grad_norm,
        }  # fmt: skip
        super().__init__(params, defaults)

    def get_lr(self) -> list[float]:
        """The learning rate of the next step of every parameter that has stepped; ``[0]`` before the first."""
        rates = [
            _rate(group, self.state[parameter]["step"])
            for group in self.param_groups
            for parameter in group["params"]
            if "step" in self.state.get(parameter, {})
        ]
        return rates or [0]

    def _update(self) -> None:
        for group in self.param_groups:
            factor = _clip_factor(with_gradients(self, group), group["max_grad_norm"])
            for batch in self._batches(group):
                gradients = batch.gradients
                if factor is not None:
                    gradients = list(torch._foreach_mul(gradients, factor.to(gradients[0])))
                updates = directions(
                    gradients, batch.buffers("exp_avg"), batch.buffers("exp_avg_sq"), math.inf,
                    (group["b1"], group["b2"]), group["e"], 1 - group["b1"], batch.scratch,
                )  # fmt: skip
                if group["weight_decay"]:
                    torch._foreach_add_(updates, batch.values, alpha=group["weight_decay"])
                torch._foreach_add_(batch.values, updates, alpha=-_rate(group, int(batch.step) - 1))


def _rate(group: dict[str, Any], done: int) -> float:
    rate = float(group["lr"])
    if group["t_total"] == -1:
        return rate
    return rate * SCHEDULES[group["schedule"]](done / group["t_total"], group["warmup"])


def _clip_factor(parameters: list[torch.Tensor], limit: float) -> torch.Tensor | None:
    if limit <= 0 or not parameters:
        return None
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    return torch.clamp(limit / (total + 1e-6), max=1.0)
