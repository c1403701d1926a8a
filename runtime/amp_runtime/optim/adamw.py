"""AdamW (Loshchilov and Hutter, 2019, https://arxiv.org/abs/1711.05101)."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from amp_runtime.optim._fused import fused_kernels, own_step


class AdamW(torch.optim.AdamW):
    """``torch.optim.AdamW`` that uses the fused kernel from O1 on, where there is one for its parameters.

    Arguments, state and checkpoints are torch's. At O0, or when ``foreach``, ``fused``, ``capturable`` or
    ``differentiable`` is given, it is torch's optimizer and nothing else.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def step(self, closure: Any = None) -> Any:
        """Updates the parameters; ``closure`` reevaluates the model and returns the loss."""
        with fused_kernels(self, "AdamW"):
            return own_step(torch.optim.AdamW)(self, closure)


AdamW.__signature__ = inspect.signature(torch.optim.AdamW)  # type: ignore[attr-defined]
