"""Ascend's NpuFusedLamb (You et al., 2019, https://arxiv.org/abs/1904.00962)."""

from __future__ import annotations

import math
from typing import Any

import torch

from amp_runtime._core.versions import separated, two_norms
from amp_runtime.optim import _checks
from amp_runtime.optim._base import Base, Batch, total_norm
from amp_runtime.optim._kernels import directions
from amp_runtime.optim.lamb import trust_ratio

_LARGEST_NORM = 10.0


class NpuFusedLamb(Base):
    """LAMB without bias correction, in whose trust ratio the norm of the weights counts for at most 10.

    Args:
        params: tensors, or dicts of group options; floating, of any shape. Half ones are updated in float32 and
            have float32 state.
        lr: the learning rate, at least 0.
        betas: decay rates of the running means of the gradient and of its square, each of [0, 1).
        eps: added to the denominator, at least 0.
        weight_decay: decay of the weights, at least 0.
        adam: always use a trust ratio of 1.
        use_global_grad_norm: divide all gradients by the 2-norm of all of them where that is above 1.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam: bool = False,
        use_global_grad_norm: bool = False,
    ) -> None:
        name = type(self).__name__
        numbers = {"lr": lr, "eps": eps, "weight_decay": weight_decay}
        for key, value in numbers.items():
            _checks.number(name, key, value)
        _checks.pair(name, "betas", betas)
        self.adam = adam
        self.use_global_grad_norm = use_global_grad_norm
        super().__init__(params, {**numbers, "betas": betas})

    def _update(self) -> None:
        divisor = total_norm(self).clamp(min=1.0) if self.use_global_grad_norm else None
        for group in self.param_groups:
            for batch in self._batches(group):
                self._update_batch(batch, group, divisor)

    def _update_batch(self, batch: Batch, group: dict[str, Any], divisor: torch.Tensor | None) -> None:
        values, gradients = batch.values, batch.gradients
        if divisor is not None:
            gradients = list(torch._foreach_mul(gradients, divisor.reciprocal().to(gradients[0])))
        updates = directions(
            gradients, batch.buffers("exp_avg"), batch.buffers("exp_avg_sq"), math.inf,
            group["betas"], group["eps"], 1 - group["betas"][0], batch.scratch,
        )  # fmt: skip
        if group["weight_decay"]:
            torch._foreach_add_(updates, values, alpha=group["weight_decay"])
        if not self.adam:
            norms = torch.stack(two_norms(values)).clamp(max=_LARGEST_NORM)
            ratio = trust_ratio(norms, torch.stack(two_norms(updates)))
            torch._foreach_mul_(updates, separated(ratio))
        torch._foreach_add_(values, updates, alpha=-group["lr"])


class Lamb(NpuFusedLamb):
    """:class:`NpuFusedLamb` under the other name that Ascend's Apex has for it."""
