"""Adam (Kingma and Ba, 2015, https://arxiv.org/abs/1412.6980)."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from amp_runtime.optim._fused import fused_kernels, own_step


class Adam(torch.optim.Adam):
    """``torch.optim.Adam`` that uses the fused kernel from O1 on, where there is one for its parameters.

    Arguments, state and checkpoints are torch's. At O0, or when ``foreach``, ``fused``, ``capturable`` or
    ``differentiable`` is given, it is torch's optimizer and nothing else.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def step(self, closure: Any = None) -> Any:
        """Updates the parameters; ``closure`` reevaluates the model and returns the loss."""
        with fused_kernels(self, "Adam"):
            return own_step(torch.optim.Adam)(self, closure)


Adam.__signature__ = inspect.signature(torch.optim.Adam)  # type: ignore[attr-defined]
