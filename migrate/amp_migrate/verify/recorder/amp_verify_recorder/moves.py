"""How far the first steps of each optimizer move its parameters, seen in a sample of them."""

from __future__ import annotations

import sys
from typing import Any

from .record import guarded
from .shards import holds_rows, own_part
from .steps import Steps

_LOOKED_AT = 3
_SAMPLE = 256
"""So many values of each parameter say as much as all, and cost nothing."""


def watch(steps: Steps) -> None:
    """Look at the first steps of each optimizer."""
    moves = _Moves(steps)
    module = sys.modules["torch.optim.optimizer"]
    module.register_optimizer_step_pre_hook(moves.before)
    module.register_optimizer_step_post_hook(moves.after)


class _Moves:
    """The parameters before a step that is under way, by the number of its optimizer."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._samples: dict[int, list[Any]] = {}
        self._looked_at: dict[int, int] = {}

    @guarded
    def before(self, optimizer: Any, *_: Any) -> None:
        """Called by torch before each step."""
        number = self._number(optimizer)
        if number is None or number in self._samples or self._looked_at.get(number, 0) >= _LOOKED_AT:
            return
        if any(holds_rows(parameter) for group in optimizer.param_groups for parameter in group["params"]):
            return  # the first values of a part are others than those of the whole
        self._looked_at[number] = self._looked_at.get(number, 0) + 1
        self._samples[number] = [value.clone() for value in self._values(optimizer)]

    @guarded
    def after(self, optimizer: Any, *_: Any) -> None:
        """Called by torch after it."""
        number = self._number(optimizer)
        before = None if number is None else self._samples.pop(number, None)
        if before is None:
            return
        torch = self._steps.torch
        with torch.no_grad():
            pairs = zip(before, self._values(optimizer), strict=True)
            squares = [(new.double() - old.double()).square().sum().to(before[0].device) for old, new in pairs]
            moved = torch.stack(squares).sum().sqrt()
        self._steps.record.add(moved=moved, optimizer=number, after=self._steps.record.backwards)

    def _number(self, optimizer: Any) -> int | None:
        return self._steps.number_of(optimizer) if self._steps.record.active else None

    def _values(self, optimizer: Any) -> list[Any]:
        """The first values of each parameter."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return [own_part(parameter.detach()).flatten()[:_SAMPLE] for parameter in parameters]
