"""Ascend's NpuFusedRMSprop (Tieleman and Hinton, 2012; centered: Graves, 2013, https://arxiv.org/abs/1308.0850)."""

from __future__ import annotations

from typing import Any

import torch


class NpuFusedRMSprop(torch.optim.RMSprop):
    """``torch.optim.RMSprop`` with the arguments of ``apex.optimizers.NpuFusedRMSprop``.

    Args:
        params: tensors, or dicts of group options.
        lr: the learning rate, at least 0.
        alpha: decay rate of the running mean of squares, at least 0.
        eps: added to the denominator, at least 0.
        weight_decay: L2 penalty, at least 0.
        momentum: at least 0.
        centered: divide by an estimate of the variance.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered
        )
