"""What the scaler knows about one optimizer, and what it does to its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from amp_runtime._precision import masters
from amp_runtime._scaling.agreement import Ranks, ranks_of
from amp_runtime._scaling.combined import CombinedGradients
from amp_runtime._scaling.gradients import clear_if, coalesced_gradients_of, gradients_of, multiply, parameters_of
from amp_runtime._scaling.loss_scale import Unit
from amp_runtime._scaling.skips import Finding

_NOT_YET = object()


@dataclass
class Record:
    """One optimizer's state between its steps.

    Attributes:
        unit: what the gradients that exist now are multiplied by; ``None`` where they have their true values.
        ready: they have been averaged, unscaled and checked since the last step.
        finding: what the check found; ``None`` where nothing was checked since the last step.
        charges: with several losses, 1.0 for the one that brought the first infinity so far; float32, one a loss.
        carried: what the check found in gradients that were then kept and accumulated further.
        abandoned: gradients that were not finite have been cleared without a step; the next one is left out.
        changed: whether the last step changed parameters, if ``decided`` found nothing.
        decided: what the last step went by.
        left_over: what the last step went by, until another loss is scaled.
        losses: the number of losses scaled when the gradients were last averaged.
        stamps: their identity and version after the last step.
        combined: the flat buffers of its gradients.
        agreed: how often loss scales had been changed from outside when the ranks agreed last.
    """

    unit: Unit | None
    ready: bool = False
    finding: Finding | None = None
    charges: torch.Tensor | None = None
    carried: torch.Tensor | None = None
    abandoned: bool = False
    changed: bool = False
    decided: Finding | None = None
    left_over: Finding | None = None
    losses: int = -1
    stamps: tuple[tuple[int, int], ...] = ()
    combined: CombinedGradients | None = None
    agreed: int = -1
    _ranks: Ranks | None = None
    _looked_up: Any = _NOT_YET
    _size: int = -1

    def ranks(self, parameters: list[torch.Tensor], chosen: Any) -> Ranks | None:
        """The ranks that decide together about this optimizer, see :func:`ranks_of`; looked up when it changes."""
        if self._looked_up is not chosen or self._size != len(parameters):
            self._ranks, self._looked_up, self._size = ranks_of(parameters, chosen), chosen, len(parameters)
        return self._ranks

    @property
    def stepped(self) -> bool:
        """Whether the last step changed parameters; may wait for the device."""
        return self.changed and not (self.decided is not None and bool(self.decided))

    def reopen(self, optimizer: torch.optim.Optimizer) -> None:
        """Lets gradients be accumulated further; an infinity that was found counts, even if it was clipped since."""
        self.ready = False
        finding, self.finding = self.finding, None
        if finding is not None:
            kept = any(parameter.grad is not None for parameter in parameters_of(optimizer))
            self.carried = finding.flag if kept else None

    def drop_left_over(self, optimizer: torch.optim.Optimizer) -> None:
        """Clears gradients that a skipped step has left: added to others, they would have every later step skipped."""
        finding, self.left_over = self.left_over, None
        if finding is not None and not (finding.is_known() and not finding):
            clear_if(gradients_of(parameters_of(optimizer)), finding.flag)

    def with_carried(self, found: torch.Tensor) -> torch.Tensor:
        """What a check ``found``, together with what is carried from the one before."""
        carried, self.carried = self.carried, None
        return found if carried is None else torch.maximum(found, carried.to(found.device))

    def charge(self, found: torch.Tensor, loss_id: int, count: int) -> torch.Tensor:
        """Notes which of ``count`` losses brought the first infinity; does not wait for the device."""
        if self.charges is None:
            self.charges = torch.zeros(count, dtype=torch.float32, device=found.device)
        first = found * (1.0 - self.charges.amax())
        self.charges[loss_id] = torch.maximum(self.charges[loss_id], first)
        return self.charges


def unscale(
    optimizer: torch.optim.Optimizer,
    parameters: list[torch.Tensor],
    unit: Unit | None,
    combined: CombinedGradients | None,
) -> torch.Tensor:
    """Gives gradients their true values in place, in float32 where there are masters; 1.0 if one was not finite."""
    gradients = coalesced_gradients_of(parameters) if combined is None else combined.whole(parameters)
    if not masters.has_masters(optimizer):
        return multiply(gradients, None if unit is None else unit.inverse)
    pairs = masters.take_gradients(optimizer)
    full = [master.grad for _, master in pairs if master.grad is not None]
    taken = {id(half) for half, _ in pairs if half.grad is not None and not half.grad.is_sparse}
    found = multiply(
        [*full, *gradients_of(p for p in parameters if id(p) not in taken)], None if unit is None else unit.inverse
    )
    masters.mark_gradients(optimizer)
    return found


def with_masters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """An optimizer's parameters and their masters, either of which a script may hand to a function."""
    parameters = parameters_of(optimizer)
    if not masters.has_masters(optimizer):
        return parameters
    full = [masters.stepped_master(parameter) for parameter in parameters]
    return parameters + [master for master in full if master is not None]


def stamps(parameters: list[torch.Tensor]) -> tuple[tuple[int, int], ...]:
    """The identity and version of each gradient, to see later whether it is another."""
    return tuple((0, 0) if p.grad is None else (id(p.grad), p.grad._version) for p in parameters)
