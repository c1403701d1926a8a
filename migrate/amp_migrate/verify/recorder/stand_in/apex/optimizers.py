"""``apex.optimizers``, as far as torch has the same algorithm."""

from __future__ import annotations

from typing import Any

import torch


def FusedAdam(
    params: Any,
    lr: float = 1e-3,
    bias_correction: bool = True,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    adam_w_mode: bool = True,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    **more: Any,
) -> torch.optim.Optimizer:
    """Return torch's AdamW, or Adam."""
    if not bias_correction:
        raise NotImplementedError("the stand-in for Apex has no FusedAdam without bias correction")
    kind = torch.optim.AdamW if adam_w_mode else torch.optim.Adam
    return kind(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)


def FusedSGD(
    params: Any,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    **more: Any,
) -> torch.optim.Optimizer:
    """Return torch's SGD."""
    return torch.optim.SGD(params, lr, momentum, dampening, weight_decay, nesterov)


def FusedLAMB(*args: Any, **more: Any) -> Any:
    """Refuse: torch has no such optimizer."""
    raise NotImplementedError("the stand-in for Apex has no optimizer of this kind; install Apex to compare with it")


FusedNovoGrad = FusedAdagrad = FusedMixedPrecisionLamb = FP16_Optimizer = FusedLAMB
