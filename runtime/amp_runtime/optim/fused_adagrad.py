"""Apex's FusedAdagrad (Duchi et al., 2011, https://jmlr.org/papers/v12/duchi11a.html)."""

from __future__ import annotations

from typing import Any

import torch

from amp_runtime.optim import _checks
from amp_runtime.optim._base import ApexZeroGrad, Base
from amp_runtime.optim._kernels import adagrad_


class FusedAdagrad(ApexZeroGrad, Base):
    """``apex.optimizers.FusedAdagrad`` through torch's fused kernel, where the device has it.

    Args:
        params: tensors, or dicts of group options; floating, of any shape. Half ones are updated in float32 and
            have float32 state.
        lr: the learning rate, at least 0.
        eps: added to the denominator, at least 0.
        weight_decay: at least 0.
        set_grad_none: what ``zero_grad()`` does: remove the gradients or fill them with zeros.
        adagrad_w_mode: decay the weights, as AdamW does; otherwise an L2 penalty.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
        adagrad_w_mode: bool = False,
    ) -> None:
        _checks.number("FusedAdagrad", "lr", lr)
        _checks.number("FusedAdagrad", "eps", eps)
        _checks.number("FusedAdagrad", "weight_decay", weight_decay)
        self.adagrad_w_mode = 1 if adagrad_w_mode else 0
        self.set_grad_none = set_grad_none
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})

    def _steps(self, group: dict[str, Any], parameters: list[torch.Tensor]) -> list[int]:
        return [0] * len(parameters)  # nothing depends on the count

    def _update(self) -> None:
        for group in self.param_groups:
            for batch in self._batches(group):
                adagrad_(
                    batch.values, batch.gradients, batch.buffers("sum"), lr=group["lr"], eps=group["eps"],
                    weight_decay=group["weight_decay"], decoupled=bool(self.adagrad_w_mode),
                )  # fmt: skip
