"""``apex.contrib.optimizers.fused_adam``: Adam (https://arxiv.org/abs/1412.6980), with the old arguments."""

from __future__ import annotations

from typing import Any

import torch

from amp_runtime.optim import fused_adam


class FusedAdam(fused_adam.FusedAdam):
    """:class:`amp_runtime.optim.FusedAdam` with the arguments and the arithmetic of Apex before October 2019.

    ``eps`` is added before the bias correction, and the weight decay is multiplied by that correction.

    Args:
        params: tensors, or dicts of group options; floating, of any shape.
        lr: the learning rate, at least 0.
        bias_correction: correct the running means for their beginning with 0.
        betas: decay rates of the running means of the gradient and of its square, each of [0, 1).
        eps: added to the denominator, at least 0.
        eps_inside_sqrt: ``sqrt(v + eps)`` instead of ``sqrt(v) + eps``.
        weight_decay: decay of the weights, at least 0.
        max_grad_norm: scale each group's gradients down to this 2-norm; 0 does not.
        amsgrad: must be false.
        use_mt: accepted; changes nothing.
        amp_scale_adjustment: multiplies the ``scale`` that ``step`` is given.

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
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        amsgrad: bool = False,
        use_mt: bool = False,
        amp_scale_adjustment: float = 1.0,
    ) -> None:
        super().__init__(
            params, lr, bias_correction, betas, eps, weight_decay=weight_decay, amsgrad=amsgrad,
            eps_inside_sqrt=eps_inside_sqrt, max_grad_norm=max_grad_norm, use_mt=True,
            amp_scale_adjustment=amp_scale_adjustment,
        )  # fmt: skip
