"""Skips in a row, and the error that ends them."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from amp_runtime._core.models import name_of, prepared_models
from amp_runtime._scaling.agreement import Ranks
from amp_runtime._scaling.gradients import is_finite, parameters_of
from amp_runtime._scaling.overflow import Observer, OverflowLocation


class GradientOverflowError(RuntimeError):
    """Too many steps in a row were skipped, because gradients were infinite or NaN.

    Attributes:
        location: the first module whose output or gradient was not finite in the last of these steps, as an
            :class:`OverflowLocation`; ``None`` if no prepared model shows one.
    """

    def __init__(self, message: str, location: OverflowLocation | None = None) -> None:
        super().__init__(message)
        self.location = location


class Skips:
    """Counts skips in a row; the one before the last allowed makes the next step an observed one.

    Attributes:
        in_a_row: the count.
        observer: what watches the prepared models, during that one step.
    """

    def __init__(self) -> None:
        self.in_a_row = 0
        self.observer: Observer | None = None

    def stop_watching(self) -> None:
        """Takes the observer off the models."""
        observer, self.observer = self.observer, None
        if observer is not None:
            observer.remove()

    def count(self, overflowed: bool, allowed: int) -> OverflowLocation | None:
        """Notes how an iteration ended.

        Args:
            overflowed: whether a gradient in it was not finite.
            allowed: the number of skips in a row that is an error.

        Returns:
            Where the overflow happened, if this step was observed.
        """
        observer = self.observer
        self.stop_watching()
        if not overflowed:
            self.in_a_row = 0
            return None
        self.in_a_row += 1
        if self.in_a_row == allowed - 1:
            self.observer = Observer(prepared_models())
        return None if observer is None else observer.location()

    def error(
        self,
        scale: float,
        own: OverflowLocation | None,
        ranks: Ranks | None,
        optimizers: Iterable[torch.optim.Optimizer],
    ) -> GradientOverflowError:
        """The error to raise. A collective of ``ranks``, since the overflow may be on another one.

        Args:
            scale: the loss scale.
            own: where it happened on this rank.
            ranks: who decided to skip.
            optimizers: those whose gradients may be bad.
        """
        found = [own] if ranks is None else ranks.gather(own)
        rank, location = next(((r, place) for r, place in enumerate(found) if place is not None), (0, None))
        if location is None:
            where = (
                f"{_bad_parameters(optimizers)}amp.scaler.locate_overflow(step_function) tells which module it was. "
            )
        else:
            where = f"{location}{f' (on rank {rank})' if len(found) > 1 else ''}. "
        return GradientOverflowError(
            f"{self.in_a_row} steps in a row were skipped because gradients were infinite or NaN; the loss scale is "
            f"{scale:g}. {where}If the loss is NaN with AMP_OPT_LEVEL=O0 too, it is not the precision; otherwise put "
            "the part that overflows under amp.autocast(enabled=False)",
            location,
        )


def _bad_parameters(optimizers: Iterable[torch.optim.Optimizer]) -> str:
    names = []
    for optimizer in optimizers:
        for index, parameter in enumerate(parameters_of(optimizer)):
            if parameter.grad is not None and not is_finite(parameter.grad):
                names.append(name_of(parameter) or f"parameter {index} of {type(optimizer).__name__}")
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"Not finite now: the gradient of {shown}. " if names else ""
