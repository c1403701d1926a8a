"""Gradients in prepared models that no optimizer holds: of a layer that is not trained, or not yet."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial

import torch

from amp_runtime._core.models import prepared_models, remembered
from amp_runtime._scaling.gradients import gradients_of, multiply, parameters_of
from amp_runtime._scaling.loss_scale import Unit


class LooseGradients:
    """Keeps them in one unit, and makes them true together with the first optimizer's.

    Clipping by the norm of a whole model, of which the optimizer has the head alone, sees them too.

    Attributes:
        unit: what those that exist now are multiplied by; ``None`` where they have their true values.
    """

    def __init__(self) -> None:
        self.unit: Unit | None = None
        self._found: list[weakref.ref[torch.Tensor]] = []
        self._found_for = -1

    def bring_to(self, unit: Unit, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Gives them the unit of a loss whose gradients will be added to them."""
        before, self.unit = self.unit, unit
        gradients = [] if before is unit else gradients_of(self._parameters(optimizers))
        if gradients:
            multiply(gradients, partial(unit.over, before))

    def make_true(self, optimizers: Iterable[torch.optim.Optimizer]) -> torch.Tensor | None:
        """Divides them by the unit that they have; 1.0 if one was not finite, ``None`` if there was nothing to do."""
        before, self.unit = self.unit, None
        gradients = [] if before is None else gradients_of(self._parameters(optimizers))
        if before is None or not gradients:
            return None
        return multiply(gradients, before.inverse)

    def give_up(self, parameters: Iterable[torch.Tensor], unit: Unit) -> None:
        """Lets an optimizer have its parameters, with gradients as the scaler finds them: scaled."""
        if self.unit is None:
            kept = {id(parameter) for parameter in self._living()}
            multiply(gradients_of(p for p in parameters if id(p) in kept), unit.on)

    def are_true(self, parameter: torch.Tensor) -> bool:
        """Whether a parameter is one of these, and its gradient true."""
        return self.unit is None and any(found is parameter for found in self._living())

    def _living(self) -> list[torch.Tensor]:
        return [parameter for found in self._found if (parameter := found()) is not None]

    def _parameters(self, optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.Tensor]:
        """The parameters of prepared models without those of ``optimizers``; looked up when either changed."""
        if self._found_for != remembered():
            held = {id(parameter) for optimizer in optimizers for parameter in parameters_of(optimizer)}
            loose = {id(p): p for model in prepared_models() for p in model.parameters() if id(p) not in held}
            self._found, self._found_for = [weakref.ref(parameter) for parameter in loose.values()], remembered()
        return self._living()

    def look_again(self) -> None:
        """Notes that an optimizer is new, or has other parameters."""
        self._found_for = -1
