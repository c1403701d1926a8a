"""Adagrad (Duchi et al., 2011, https://jmlr.org/papers/v12/duchi11a.html)."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from amp_runtime._core.context import HALF_DTYPES
from amp_runtime.optim._fused import fused_kernels, own_step


class Adagrad(torch.optim.Adagrad):
    """``torch.optim.Adagrad`` that uses the fused kernel from O1 on, where there is one for its parameters.

    Arguments, state and checkpoints are torch's. At O0, or when ``foreach``, ``fused``, ``capturable`` or
    ``differentiable`` is given, it is torch's optimizer and nothing else.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def step(self, closure: Any = None) -> Any:
        """Updates the parameters; ``closure`` reevaluates the model and returns the loss."""
        for parameter, state in self.state.items():  # torch made the sums before, maybe as half as O2's parameters
            total = state.get("sum")
            if total is not None and total.dtype in HALF_DTYPES and total.dtype != parameter.dtype:
                state["sum"] = total.to(parameter.dtype)
        with fused_kernels(self, "Adagrad"):
            return own_step(torch.optim.Adagrad)(self, closure)


Adagrad.__signature__ = inspect.signature(torch.optim.Adagrad)  # type: ignore[attr-defined]
