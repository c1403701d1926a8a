"""Numbers by which schedules decide."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from . import imports
from .record import guarded
from .steps import Steps


def watch(steps: Steps) -> None:
    """Record the metric that every ``ReduceLROnPlateau`` is given."""
    imports.after("torch.optim.lr_scheduler", _Plateaus(steps).watch)


class _Plateaus:
    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def watch(self, module: Any) -> None:
        """Follow the one schedule of torch that decides by a number."""
        plateau = module.ReduceLROnPlateau
        plateau.step = self._noting(plateau.step)

    def _noting(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def noted(scheduler: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
            self._note(metrics, sys._getframe(1))
            return step(scheduler, metrics, *args, **kwargs)

        return noted

    @guarded
    def _note(self, metric: Any, frame: FrameType) -> None:
        torch, record = self.steps.torch, self.steps.record
        is_tensor = isinstance(metric, torch.Tensor)
        number = metric.detach().clone() if is_tensor else float(metric).hex()
        record.add(metric=number, after=record.backwards, site=record.sites.of(frame))
