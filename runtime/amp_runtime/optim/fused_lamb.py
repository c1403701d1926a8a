"""Apex's FusedLAMB (You et al., 2019, https://arxiv.org/abs/1904.00962)."""

from __future__ import annotations

from typing import Any

import torch

from amp_runtime.optim import _checks
from amp_runtime.optim._base import ApexZeroGrad, GroupStep
from amp_runtime.optim.lamb import LAMB


class FusedLAMB(ApexZeroGrad, GroupStep, LAMB):
    """``apex.optimizers.FusedLAMB``: :class:`amp_runtime.optim.LAMB` with Apex's arguments, which clips by default.

    It counts steps in the group, has float32 state for half parameters, and leaves the gradients as they are, where
    Apex overwrites them.

    Args:
        params: tensors, or dicts of group options; floating, of any shape.
        lr: the learning rate, at least 0.
        bias_correction: divide the running means by ``1 - beta ** step``.
        betas: decay rates of the running means of the gradient and of its square, each of [0, 1).
        eps: added to the denominator, at least 0.
        weight_decay: at least 0.
        amsgrad: must be false.
        adam_w_mode: add the weight decay to the update; otherwise to the gradient, as an L2 penalty.
        grad_averaging: weigh a new gradient with ``1 - beta1`` in the mean; otherwise with 1.
        set_grad_none: what ``zero_grad()`` does: remove the gradients or fill them with zeros.
        max_grad_norm: scale all gradients of all groups down to this 2-norm; 0 or ``None`` does not.
        use_nvlamb: scale tensors without weight decay too.

    Raises:
        RuntimeError: ``amsgrad``.
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float | None = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        _checks.no_amsgrad("FusedLAMB", amsgrad)
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.set_grad_none = set_grad_none
        self.use_nvlamb = use_nvlamb
        LAMB.__init__(
            self, params, lr, betas, eps, weight_decay, bias_correction=bias_correction, adam_w_mode=adam_w_mode,
            grad_averaging=grad_averaging, max_grad_norm=max_grad_norm, always_adapt=use_nvlamb,
        )  # fmt: skip
