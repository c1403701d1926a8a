"""The loss scale of one loss, and how it divides gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch

from amp_runtime._precision.properties import fixed_loss_scale
from amp_runtime._scaling.gradients import multiply
from amp_runtime._scaling.loss_scale import FLOOR, LossScale
from amp_runtime._scaling.overflow import OverflowLocation
from amp_runtime._scaling.scaler import scaler as runtime_scaler
from amp_runtime._scaling.skips import Finding, GradientOverflowError, Skips, known, strongest


class LossScaler:
    """The loss scale of one loss: dynamic or fixed, counted per backward pass.

    A dynamic scale halves at an overflow and doubles after ``scale_window`` good backward passes in a row. A
    fixed one never changes. In both an overflow asks for the step to be skipped; Apex applied it under a fixed
    scale, and destroyed the parameters.

    ``AMP_LOSS_SCALE`` in the environment fixes it, whatever it was given.

    The scale never becomes 0, as Apex's could: without ``min_loss_scale`` the floor is 2**-14.

    Args:
        loss_scale: ``"dynamic"`` or a positive number.
        init_scale: the first dynamic scale; ``max_loss_scale`` if that is less.
        scale_factor: what the scale is multiplied by when it grows.
        scale_window: the number of good backward passes in a row before it grows.
        min_loss_scale: the dynamic scale's floor.
        max_loss_scale: the dynamic scale's ceiling.
        backoff_factor: what the scale is multiplied by at an overflow; 1 / ``scale_factor`` by default.

    Attributes:
        dynamic: whether the scale adapts.

    Raises:
        ValueError: ``loss_scale`` is a number that is not positive, or ``AMP_LOSS_SCALE`` is none.
    """

    def __init__(
        self,
        loss_scale: float | Literal["dynamic"],
        init_scale: float = 2.0**16,
        scale_factor: float = 2.0,
        scale_window: int = 2000,
        min_loss_scale: float | None = None,
        max_loss_scale: float = 2.0**24,
        backoff_factor: float | None = None,
    ) -> None:
        fixed = fixed_loss_scale()
        chosen = loss_scale if fixed is None else fixed
        self.dynamic = chosen == "dynamic"
        first = min(max_loss_scale, init_scale) if chosen == "dynamic" else float(chosen)
        if not first > 0:
            raise ValueError(f"LossScaler got loss_scale={loss_scale!r}; allowed: 'dynamic' or a positive number")
        self._scale = LossScale(first, dynamic=self.dynamic)
        self._min_loss_scale = min_loss_scale
        self._max_loss_scale = max_loss_scale
        self._scale_factor = scale_factor
        self._backoff_factor = 1.0 / scale_factor if backoff_factor is None else backoff_factor
        self._scale_seq_len = scale_window
        self._found: list[torch.Tensor] = []
        self._skips = Skips()

    @property
    def _loss_scale(self) -> float:
        """Apex's name for the scale, which scripts read and set; ``_unskipped`` is the number of good passes."""
        return self._scale.value

    @_loss_scale.setter
    def _loss_scale(self, value: float) -> None:
        self._scale.put(value)

    @property
    def _unskipped(self) -> int:
        return self._scale.good_steps

    @_unskipped.setter
    def _unskipped(self, value: int) -> None:
        self._scale.put(self._scale.value, value)

    @property
    def _has_overflow(self) -> bool:
        """Apex's name for what ``found_overflow`` says."""
        return self.found_overflow()

    @_has_overflow.setter
    def _has_overflow(self, value: bool) -> None:
        self._found = [known(True).flag] if value else []

    def loss_scale(self) -> float:
        """The factor for the loss now."""
        return self._scale.value

    def clear_overflow_state(self) -> None:
        """Forgets what was found in earlier gradients."""
        self._found = []

    def unscale(
        self,
        model_grads: Sequence[torch.Tensor | None],
        master_grads: Sequence[torch.Tensor | None],
        unused_scale: Any = None,
        models_are_masters: bool = False,
        scale_override: float | None = None,
    ) -> None:
        """Writes the true values of scaled gradients into ``master_grads`` and looks for infinities and NaN.

        Args:
            model_grads: scaled gradients.
            master_grads: where to write them, tensors of the same shapes; may be the same tensors.
            unused_scale: not used, as in Apex.
            models_are_masters: whether both lists hold the same tensors; not needed here.
            scale_override: the scale to divide by, instead of the current one.
        """
        pairs = [(a, b) for a, b in zip(model_grads, master_grads, strict=True) if a is not None and b is not None]
        with torch.no_grad():
            for scaled, true in pairs:
                if scaled is not true:
                    true.copy_(scaled)
            self._divide([true for _, true in pairs], scale_override)

    def unscale_with_stashed(
        self,
        model_grads: Sequence[torch.Tensor],
        stashed_master_grads: Sequence[torch.Tensor],
        master_grads: Sequence[torch.Tensor],
        scale_override: Any = None,
    ) -> None:
        """Writes true values plus what was accumulated before into ``master_grads``.

        Only the new gradients are checked: what was accumulated has been checked already.

        Args:
            model_grads: scaled gradients.
            stashed_master_grads: gradients accumulated before, with their true values.
            master_grads: where to write the sums; may be one of the other lists.
            scale_override: ``(grads_have_scale, stashed_have_scale, out_scale)`` instead of the current scale.
        """
        incoming, kept, wanted = (self._scale.value, 1.0, 1.0) if scale_override is None else scale_override
        with torch.no_grad():
            new = [grad.to(true.dtype, copy=True) for grad, true in zip(model_grads, master_grads, strict=True)]
            self._divide(new, incoming / wanted)
            for value, stashed, true in zip(new, stashed_master_grads, master_grads, strict=True):
                true.copy_(value.add_(stashed, alpha=wanted / kept))

    def _divide(self, gradients: Iterable[torch.Tensor], scale: float | None = None) -> None:
        """Divides gradients in place by the scale and notes whether one is not finite."""
        several = list(gradients)
        if several:
            given = None if scale is None else LossScale(scale, dynamic=False)
            self._found.append(multiply(several, (given or self._scale).unit().inverse))

    def found_overflow(self) -> bool:
        """Whether a gradient was not finite since the last ``clear_overflow_state``. Waits for the device."""
        return bool(self._found) and bool(strongest(self._found).item())

    def update_scale(self) -> bool:
        """Adapts the scale after a backward pass.

        Returns:
            Whether the optimizer's step has to be skipped.

        Raises:
            GradientOverflowError: ``amp_runtime.scaler.max_skips`` backward passes in a row overflowed.
        """
        finding = Finding(strongest(self._found)) if self._found else known(False)
        self._scale.follow(
            finding.flag,
            growth=self._scale_factor,
            backoff=self._backoff_factor,
            interval=self._scale_seq_len,
            floor=self._min_loss_scale or FLOOR,
            ceiling=self._max_loss_scale,
        )
        self._scale.read_with(finding)
        location = self._skips.end_iteration([finding], runtime_scaler.max_skips)
        if finding:
            self._stop_if_hopeless(location)
        return bool(finding)

    def _stop_if_hopeless(self, location: OverflowLocation | None) -> None:
        if self._skips.in_a_row < runtime_scaler.max_skips:
            return
        where = "" if location is None else f"{location}. "
        raise GradientOverflowError(
            f"{self._skips.in_a_row} backward passes in a row gave infinite or NaN gradients; the loss scale is "
            f"{self._scale.value:g}. {where}If the loss is NaN with opt_level='O0' too, it is not the precision; "
            "otherwise give the part that overflows to amp.register_float_function",
            location,
        )
