"""Ascend's NpuFusedAdamP (Heo et al., 2021, https://arxiv.org/abs/2006.08217)."""

from __future__ import annotations

import math
from typing import Any

import torch

from amp_runtime.optim import _checks
from amp_runtime.optim._base import Base, Batch


class NpuFusedAdamP(Base):
    """Adam that takes the part along the weights out of the step of scale-invariant tensors.

    Args:
        params: tensors, or dicts of group options; floating, of any shape. Half ones are updated in float32 and
            have float32 state.
        lr: the learning rate, at least 0.
        betas: decay rates of the running means of the gradient and of its square, each of [0, 1).
        eps: added to denominators, at least 0.
        weight_decay: decay of the weights, at least 0.
        delta: a tensor of n elements (in a channel) is scale-invariant when the cosine between its gradient and
            itself is below ``delta / sqrt(n)``.
        wd_ratio: multiplies the weight decay of those tensors.
        nesterov: Nesterov's momentum.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        delta: float = 0.1,
        wd_ratio: float = 0.1,
        nesterov: bool = False,
    ) -> None:
        numbers = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "delta": delta, "wd_ratio": wd_ratio}
        for name, value in numbers.items():
            _checks.number("NpuFusedAdamP", name, value)
        _checks.pair("NpuFusedAdamP", "betas", betas)
        super().__init__(params, {**numbers, "betas": betas, "nesterov": nesterov})

    def _update(self) -> None:
        for group in self.param_groups:
            for batch in self._batches(group):
                _step(batch, group)


def _step(batch: Batch, group: dict[str, Any]) -> None:
    beta1, beta2 = group["betas"]
    correction1, correction2 = 1 - beta1**batch.step, 1 - beta2**batch.step
    exp_avgs, exp_avg_sqs = batch.buffers("exp_avg"), batch.buffers("exp_avg_sq")
    for value, gradient, exp_avg, exp_avg_sq in zip(batch.values, batch.gradients, exp_avgs, exp_avg_sqs, strict=True):
        exp_avg.mul_(beta1).add_(gradient, alpha=1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        mean = exp_avg * beta1 + gradient * (1 - beta1) if group["nesterov"] else exp_avg
        step = mean / (exp_avg_sq / correction2).sqrt_().add_(group["eps"])
        ratio = 1.0
        if value.dim() > 1 and (rows := _scale_invariant_rows(value, gradient, group["delta"], group["eps"])):
            flat, direction = value.reshape(rows, -1), step.reshape(rows, -1)
            unit = flat / flat.norm(dim=1, keepdim=True).add_(group["eps"])
            step = (direction - unit * (unit * direction).sum(1, keepdim=True)).reshape(value.shape)
            ratio = group["wd_ratio"]
        value.mul_(1 - group["lr"] * group["weight_decay"] * ratio)
        value.sub_(step, alpha=group["lr"] / correction1)


def _scale_invariant_rows(value: torch.Tensor, gradient: torch.Tensor, delta: float, eps: float) -> int:
    """Rows to project in: one a channel, or 1 for the whole tensor; 0 where it is not scale-invariant."""
    for rows in (value.shape[0], 1):
        flat, slope = value.reshape(rows, -1), gradient.reshape(rows, -1)
        cosine = (flat * slope).sum(1).abs() / slope.norm(dim=1).add_(eps) / flat.norm(dim=1).add_(eps)
        if cosine.max() < delta / math.sqrt(flat.shape[1]):
            return rows
    return 0
