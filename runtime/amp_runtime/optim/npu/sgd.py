"""Ascend's NpuFusedSGD: stochastic gradient descent with momentum (Sutskever et al., 2013)."""

from __future__ import annotations

from typing import Any

from amp_runtime.optim.sgd import SGD


class NpuFusedSGD(SGD):
    """:class:`amp_runtime.optim.SGD` with the arguments of ``apex.optimizers.NpuFusedSGD``.

    Args:
        params: tensors, or dicts of group options.
        lr: the learning rate, at least 0.
        momentum: at least 0.
        dampening: the gradient enters the momentum with ``1 - dampening``.
        weight_decay: L2 penalty, at least 0.
        nesterov: Nesterov's momentum; wants a momentum and no dampening.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(
            params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov
        )
