"""Ascend's NpuFusedAdadelta (Zeiler, 2012, https://arxiv.org/abs/1212.5701)."""

from __future__ import annotations

from typing import Any

import torch


class NpuFusedAdadelta(torch.optim.Adadelta):
    """``torch.optim.Adadelta`` with the arguments of ``apex.optimizers.NpuFusedAdadelta``.

    Args:
        params: tensors, or dicts of group options.
        lr: multiplies the step, at least 0.
        rho: decay rate of the running means of squares, of [0, 1].
        eps: added inside both roots, at least 0.
        weight_decay: L2 penalty, at least 0.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self, params: Any, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr=lr, rho=rho, eps=eps, weight_decay=weight_decay)
