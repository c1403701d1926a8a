"""The dynamic loss scale as an automaton that runs on the device, and the unit that it gives to gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from amp_runtime._scaling.skips import Finding

FLOOR = 2.0**-14
"""float16's smallest normal number: far below any scale that a gradient needs, and far above 0."""


_NEVER = 2**31 - 1


class LossScale:
    """A scale that falls after an overflow and grows after a number of good steps in a row.

    It lies on the device of the first loss and is changed there, in place, so that nobody waits for it and a step with
    it can be captured in a CUDA graph. Reading it waits for the device.

    Micikevicius et al., Mixed Precision Training, https://arxiv.org/abs/1710.03740, section 3.2.

    Args:
        value: what the loss is multiplied by.
        dynamic: whether it ever changes by itself.
    """

    def __init__(self, value: float, *, dynamic: bool = True) -> None:
        self.dynamic = dynamic
        self._value: float | None = value
        self._good_steps: int | None = 0
        self._given = value
        self._scale: torch.Tensor | None = None
        self._tracker: torch.Tensor | None = None
        self._unit: Unit | None = None

    @property
    def value(self) -> float:
        """What the loss is multiplied by now; may wait for the device."""
        if self._value is None and self._scale is not None:
            self._value = self._scale.item()
        return self._value or 0.0

    @property
    def good_steps(self) -> int:
        """The number of good steps since the scale last changed; may wait for the device."""
        if self._good_steps is None and self._tracker is not None:
            self._good_steps = int(self._tracker.item())
        return self._good_steps or 0

    def put(self, value: float, good_steps: int | None = None) -> None:
        """Gives it a value from outside, beyond its bounds perhaps, and a number of good steps."""
        self._keep_unit()
        self._value = self._given = value
        if self._scale is not None:
            self._scale.fill_(value)
        if good_steps is not None:
            self._good_steps = good_steps
            if self._tracker is not None:
                self._tracker.fill_(good_steps)

    def on(self, device: torch.device) -> torch.Tensor:
        """The scale as a float32 tensor of shape ``()`` on a device."""
        if self._scale is None:
            self._scale = torch.full((), self.value, dtype=torch.float32, device=device)
        return self._scale if self._scale.device == device else self._scale.to(device, non_blocking=True)

    def unit(self) -> Unit:
        """The unit of gradients of a loss that is scaled now: the same object until the scale may have changed."""
        if self._unit is None:
            self._unit = Unit(self)
        return self._unit

    def follow(
        self,
        found: torch.Tensor,
        *,
        growth: float,
        backoff: float,
        interval: int,
        floor: float,
        ceiling: float,
        counts: bool = True,
    ) -> None:
        """Changes the scale after a step, on the device.

        Args:
            found: float32 of one element, not 0 if a gradient was not finite.
            growth: the factor after ``interval`` good steps.
            backoff: the factor after an overflow.
            interval: the number of good steps before the scale grows.
            floor: the scale does not fall below this, except that it was put there.
            ceiling: the scale does not grow above this, with the same exception.
            counts: whether a good step is one more in a row, and not another one of the same iteration.
        """
        scale = self.on(found.device)
        if self._tracker is None:
            self._tracker = torch.full((), self.good_steps, dtype=torch.int32, device=scale.device)
        if not self.dynamic:
            growth = backoff = 1.0
        else:
            self._keep_unit()
        found = found.to(scale.device)
        if counts:
            torch._amp_update_scale_(scale, self._tracker, found, growth, backoff, interval)
        else:
            torch._amp_update_scale_(scale, self._tracker.clone(), found, growth, backoff, _NEVER)
            self._tracker.mul_(found == 0)
        self._good_steps = None
        if self.dynamic:
            self._value = None
            scale.clamp_(min(floor, self._given), max(ceiling, self._given))

    def read_with(self, finding: Finding) -> None:
        """Reads scale, good steps and a finding in one wait for the device, for those who go by all of them."""
        if self._scale is not None and self._tracker is not None and not finding.is_known():
            flag = finding.flag.to(self._scale.device)
            numbers = torch.stack([flag, self._scale, self._tracker.float()]).tolist()
            finding.answer(bool(numbers[0]))
            self._value, self._good_steps = numbers[1], int(numbers[2])

    def _keep_unit(self) -> None:
        unit, self._unit = self._unit, None
        if unit is not None:
            unit.keep()


class Unit:
    """What gradients are multiplied by: a loss scale as it was when their loss was scaled."""

    def __init__(self, scale: LossScale) -> None:
        self._scale = scale
        self._is_past = False
        self._kept: torch.Tensor | None = None
        self._inverse: torch.Tensor | None = None

    def keep(self) -> None:
        """Remembers the number, because the scale is about to change."""
        self._is_past = True
        if self._inverse is None:
            scale = self._scale._scale
            self._kept = torch.full((), self._scale.value) if scale is None else scale.clone()

    def on(self, device: torch.device) -> torch.Tensor:
        """The unit as a float32 tensor of shape ``()`` on a device."""
        if not self._is_past:
            return self._scale.on(device)
        if self._kept is None:
            self._kept = self.inverse(device).reciprocal()
        return self._kept if self._kept.device == device else self._kept.to(device, non_blocking=True)

    def inverse(self, device: torch.device) -> torch.Tensor:
        """One over it, by which gradients become true."""
        if self._inverse is None:
            self._inverse = self.on(device).reciprocal()
        return self._inverse if self._inverse.device == device else self._inverse.to(device, non_blocking=True)

    def over(self, other: Unit | None, device: torch.device) -> torch.Tensor:
        """What gradients in the unit ``other`` (``None``: true ones) are multiplied by, to have this one."""
        own = self.on(device)
        return own if other is None else own * other.inverse(device)
