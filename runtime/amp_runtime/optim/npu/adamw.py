"""Ascend's NpuFusedAdamW (Loshchilov and Hutter, 2019, https://arxiv.org/abs/1711.05101)."""

from __future__ import annotations

from typing import Any

from amp_runtime.optim.adamw import AdamW


class NpuFusedAdamW(AdamW):
    """:class:`amp_runtime.optim.AdamW` with the arguments of ``apex.optimizers.NpuFusedAdamW``.

    Args:
        params: tensors, or dicts of group options.
        lr: the learning rate, at least 0.
        betas: decay rates of the running means of the gradient and of its square, each of [0, 1).
        eps: added to the denominator, at least 0.
        weight_decay: decay of the weights, at least 0.
        amsgrad: use the largest mean of squares so far.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
