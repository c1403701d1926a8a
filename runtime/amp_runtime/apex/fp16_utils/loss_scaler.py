"""The loss scalers of ``FP16_Optimizer``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from amp_runtime._precision.properties import fixed_loss_scale
from amp_runtime._scaling.gradients import is_finite, values
from amp_runtime.apex.fp16_utils.fp16util import to_python_float as to_python_float

_LARGEST = 2.0**126  # a larger one would overflow float32


class LossScaler:
    """A fixed loss scale, which ``AMP_LOSS_SCALE`` in the environment overrides.

    Args:
        scale: the scale, positive.

    Attributes:
        cur_scale: the scale.
    """

    def __init__(self, scale: float = 1) -> None:
        fixed = fixed_loss_scale()
        self.cur_scale = float(scale) if fixed is None else fixed

    def has_overflow(self, params: Iterable[torch.Tensor]) -> bool:
        """``False``: a fixed scale checks nothing."""
        return False

    def update_scale(self, overflow: bool) -> None:
        """Does nothing."""

    @property
    def loss_scale(self) -> float:
        """The scale."""
        return self.cur_scale

    def scale_gradient(self, module: Any, grad_in: Any, grad_out: Any) -> tuple[torch.Tensor, ...]:
        """A backward hook: gradients times the scale."""
        return tuple(self.loss_scale * gradient for gradient in grad_in)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> None:
        """Runs the backward pass of the scaled loss."""
        (loss * self.loss_scale).backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]


class DynamicLossScaler(LossScaler):
    """A loss scale that falls at an overflow and doubles every ``scale_window`` steps without one; at least 1.

    Args:
        init_scale: the first scale.
        scale_factor: by what it falls and grows.
        scale_window: the number of steps before it grows.

    Attributes:
        cur_scale: the scale.
        cur_iter: the number of steps so far.
        last_overflow_iter: the last of them that overflowed; -1 before.
    """

    def __init__(self, init_scale: float = 2.0**32, scale_factor: float = 2.0, scale_window: int = 1000) -> None:
        super().__init__(init_scale)
        self.cur_iter = 0
        self.last_overflow_iter = -1
        self.scale_factor = scale_factor
        self.scale_window = scale_window

    def has_overflow(self, params: Iterable[torch.Tensor]) -> bool:
        """Whether a gradient of ``params`` is infinite or NaN."""
        return has_overflow(params)

    @staticmethod
    def _has_inf_or_nan(x: torch.Tensor) -> bool:
        """Whether ``x`` has an element that is infinite or NaN."""
        return not is_finite(x)

    def update_scale(self, overflow: bool) -> None:
        """Adapts the scale after a step.

        Args:
            overflow: whether a gradient was not finite.
        """
        if fixed_loss_scale() is not None:
            return
        if overflow:
            self.cur_scale = max(self.cur_scale / self.scale_factor, 1.0)
            self.last_overflow_iter = self.cur_iter
        elif (self.cur_iter - self.last_overflow_iter) % self.scale_window == 0:
            self.cur_scale = min(self.cur_scale * self.scale_factor, _LARGEST)
        self.cur_iter += 1


def found_in(params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """For each device a scalar that is not 0 if a gradient there is infinite or NaN."""
    flags: dict[torch.device, list[torch.Tensor]] = {}
    for parameter in params:
        if parameter.grad is not None and values(parameter.grad).numel():
            finite = torch.isfinite(values(parameter.grad.detach()))
            flags.setdefault(finite.device, []).append((~finite).any())
    return [torch.stack(of_device).any().float() for of_device in flags.values()]


def has_overflow(params: Iterable[torch.Tensor]) -> bool:
    """Whether a gradient of ``params`` is infinite or NaN."""
    return any(bool(flag.item()) for flag in found_in(params))
