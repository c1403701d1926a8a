"""What a ``torch.amp.GradScaler`` that is handed to ``step`` knows about the gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch.amp.grad_scaler import OptState


def scale_and_overflow(optimizer: torch.optim.Optimizer, grad_scaler: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale that the optimizer's gradients still have, and 1.0 if one of them is not finite.

    Both are float32 scalars on the scaler's device, which is not waited for.
    """
    unscaled = grad_scaler._per_optimizer_states[id(optimizer)]["stage"] is OptState.UNSCALED
    found = list(grad_scaler._check_inf_per_device(optimizer).values())
    scale: torch.Tensor = grad_scaler._get_scale_async()
    flags = torch.stack([flag.to(scale.device).reshape(()) for flag in found])
    return torch.ones_like(scale) if unscaled else scale, flags.amax()
