"""Apex's FusedSGD: stochastic gradient descent with momentum (Sutskever et al., 2013)."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import required

from amp_runtime.optim import _checks
from amp_runtime.optim._base import ApexZeroGrad, Base, Batch
from amp_runtime.optim._kernels import sgd_


class FusedSGD(ApexZeroGrad, Base):
    """``apex.optimizers.FusedSGD`` through torch's fused kernels, on CPU and CUDA.

    Args:
        params: tensors, or dicts of group options; floating, of any shape. Half ones are updated in float32 and
            have float32 state.
        lr: the learning rate, at least 0; required here or in every group.
        momentum: at least 0.
        dampening: the gradient enters the momentum with ``1 - dampening``.
        weight_decay: at least 0.
        nesterov: Nesterov's momentum; wants a momentum and no dampening.
        wd_after_momentum: add the weight decay after the momentum.
        materialize_master_grads: accepted and kept; float32 gradients of master weights are always made here.
        set_grad_none: what ``zero_grad()`` does: remove the gradients or fill them with zeros.

    Attributes:
        most_recent_scale: what the gradients of the next step are divided by; 1.0 again after it.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: Any = required,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:
        if lr is not required:
            _checks.number("FusedSGD", "lr", lr)
        _checks.number("FusedSGD", "momentum", momentum)
        _checks.number("FusedSGD", "weight_decay", weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                f"FusedSGD got nesterov=True, momentum={momentum!r} and dampening={dampening!r}; "
                "allowed: a momentum above 0 and a dampening of 0"
            )
        self.wd_after_momentum = wd_after_momentum
        self.materialize_master_grads = materialize_master_grads
        self.set_grad_none = set_grad_none
        self.most_recent_scale = 1.0
        self.scale_set_by_backward = False
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)

    def _steps(self, group: dict[str, Any], parameters: list[torch.Tensor]) -> list[int]:
        # Parameters without momentum so far go into batches of their own.
        return [int(self.state[parameter].get("momentum_buffer") is None) for parameter in parameters]

    def _update(self) -> None:
        for group in self.param_groups:
            for batch in self._batches(group):
                self._update_batch(batch, group)
        self.most_recent_scale = 1.0
        self.scale_set_by_backward = False

    def _update_batch(self, batch: Batch, group: dict[str, Any]) -> None:
        gradients = batch.gradients
        if self.most_recent_scale != 1.0:
            gradients = list(torch._foreach_mul(gradients, 1.0 / self.most_recent_scale))
        sgd_(
            batch.values, gradients, batch.buffers("momentum_buffer") if group["momentum"] else [],
            lr=group["lr"], momentum=group["momentum"], dampening=group["dampening"],
            weight_decay=group["weight_decay"], nesterov=group["nesterov"], first=bool(batch.step == 1),
            decay_last=self.wd_after_momentum,
        )  # fmt: skip
