"""The dynamic loss scale as an automaton, one for each loss."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LossScale:
    """A scale that falls after an overflow and grows after a number of good steps in a row.

    Micikevicius et al., Mixed Precision Training, https://arxiv.org/abs/1710.03740, section 3.2.

    Attributes:
        scale: what the loss is multiplied by.
        good_steps: the number of good steps since the scale last changed.
        dynamic: whether it ever changes.
    """

    scale: float
    good_steps: int = 0
    dynamic: bool = True

    def follow(
        self, overflowed: bool, *, growth: float, backoff: float, interval: int, floor: float, ceiling: float
    ) -> None:
        """Changes the scale after a step.

        Args:
            overflowed: whether a gradient was not finite.
            growth: the factor after ``interval`` good steps.
            backoff: the factor after an overflow.
            interval: the number of good steps before the scale grows.
            floor: the scale does not fall below this.
            ceiling: the scale does not grow above this.
        """
        if overflowed:
            self.good_steps = 0
            if self.dynamic:
                self.scale = max(self.scale * backoff, min(floor, self.scale))
            return
        self.good_steps += 1
        if self.good_steps >= interval:
            self.good_steps = 0
            if self.dynamic:
                self.scale = min(self.scale * growth, max(ceiling, self.scale))
