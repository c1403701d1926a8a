"""The optimizer of ``amp.init``'s handle, from before ``amp.initialize``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from amp_runtime.apex.amp._amp_state import master_params, maybe_print
from amp_runtime.apex.amp.scaler import LossScaler


class OptimWrapper:
    """An optimizer with ``scale_loss``; every other attribute is the wrapped optimizer's.

    Args:
        optimizer: the optimizer to wrap.
        amp_handle: what ``amp.init`` returned.
        num_loss: the number of losses before each step; each has its own scale.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, amp_handle: Any, num_loss: int) -> None:
        self._optimizer = optimizer
        self._amp_handle = amp_handle
        self._num_loss = num_loss
        self._loss_idx = 0
        self._skip_next = [False] * num_loss
        self._loss_scaler = [LossScaler(getattr(amp_handle, "_loss_scale", "dynamic")) for _ in range(num_loss)]

    @contextmanager
    def scale_loss(self, loss: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yields the scaled loss; on exit the gradients have their true values, added to those before.

        Raises:
            RuntimeError: it is used more than ``num_loss`` times before a step.
        """
        if not self._amp_handle.is_active():
            yield loss
            return
        if self._loss_idx >= self._num_loss:
            raise RuntimeError(
                f"scale_loss was used more than num_loss={self._num_loss} times before optimizer.step(); pass the "
                "number of backward passes to handle.wrap_optimizer(optimizer, num_loss=...)"
            )
        scaler = self._loss_scaler[self._loss_idx]
        parameters = list(master_params(self._optimizer))
        kept = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        yield loss.float() * scaler.loss_scale()
        scaler.clear_overflow_state()
        scaler._divide([parameter.grad for parameter in parameters if parameter.grad is not None])
        self._skip_next[self._loss_idx] = scaler.update_scale()
        self._loss_idx += 1
        for parameter, earlier in zip(parameters, kept, strict=True):
            if earlier is not None:
                parameter.grad = earlier if parameter.grad is None else parameter.grad + earlier

    def step(self, closure: Any = None) -> Any:
        """Steps the optimizer, unless a gradient of one of the losses was not finite.

        Raises:
            NotImplementedError: a closure was given while casts are on.
        """
        if not self._amp_handle.is_active():
            return self._optimizer.step(closure)
        if closure is not None:
            raise NotImplementedError("The `closure` argument is unsupported by the amp optimizer wrapper.")
        self._loss_idx = 0
        if any(self._skip_next):
            maybe_print("Gradient overflow, skipping update")
            self._skip_next = [False] * self._num_loss
            return None
        with self._amp_handle._disable_casts():
            return self._optimizer.step()

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":
            raise AttributeError(name)
        return getattr(self._optimizer, name)
