"""What the scaler knows about one optimizer, and what it does to its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from amp_runtime._precision import masters
from amp_runtime._scaling.agreement import Ranks, ranks_of
from amp_runtime._scaling.combined import CombinedGradients
from amp_runtime._scaling.gradients import (
    coalesced_gradients_of,
    gradients_of,
    have_gradients,
    multiply,
    parameters_of,
)

_NOT_YET = object()


@dataclass
class Record:
    """One optimizer's state between its steps.

    Attributes:
        true_valued: the gradients that exist now are not multiplied by the scale.
        ready: they have been averaged, unscaled and checked since the last step.
        findings: what the check found, on the device; see :class:`Findings`.
        carried: what the check found in gradients that were then kept and accumulated further.
        charges: with several losses, 1.0 for the one that brought the first infinity so far; float32, one a loss.
        stepped: whether the last step changed parameters.
        losses: the number of losses scaled when the gradients were last averaged.
        stamps: their identity and version after the last step.
        combined: the flat buffers of its gradients.
    """

    true_valued: bool
    ready: bool = False
    findings: torch.Tensor | None = None
    carried: torch.Tensor | None = None
    charges: torch.Tensor | None = None
    stepped: bool = False
    losses: int = -1
    stamps: tuple[tuple[int, int], ...] = ()
    combined: CombinedGradients | None = None
    _ranks: Ranks | None = None
    _looked_up: Any = _NOT_YET

    def ranks(self, parameters: list[torch.Tensor], chosen: Any) -> Ranks | None:
        """The ranks that decide together about this optimizer, see :func:`ranks_of`; looked up once."""
        if self._looked_up is not chosen:
            self._ranks, self._looked_up = ranks_of(parameters, chosen), chosen
        return self._ranks

    def reopen(self, optimizer: torch.optim.Optimizer) -> None:
        """Lets gradients be accumulated further; an infinity that was found counts, even if it was clipped since."""
        self.ready = False
        findings, self.findings = self.findings, None
        if findings is not None:
            self.carried = findings[:1] if have_gradients(parameters_of(optimizer)) else None

    def with_carried(self, found: torch.Tensor) -> torch.Tensor:
        """What a check ``found``, together with what is carried from the one before."""
        carried, self.carried = self.carried, None
        return found if carried is None else torch.maximum(found, carried.to(found.device))

    def charge(self, found: torch.Tensor, loss_id: int, count: int) -> torch.Tensor:
        """Notes which of ``count`` losses brought the first infinity; does not wait for the device."""
        if self.charges is None:
            self.charges = torch.zeros(count, dtype=torch.float32, device=found.device)
        first = found * (1.0 - self.charges.amax())
        self.charges[loss_id] = torch.maximum(self.charges[loss_id], first[0])
        return self.charges


@dataclass
class Findings:
    """What the ranks found in an optimizer's gradients.

    Attributes:
        overflowed: one was infinite or NaN.
        losses: the losses that brought the first one, if that is known.
        scales: the smallest scale of each loss over the ranks, if they differ.
    """

    overflowed: bool
    losses: list[int]
    scales: list[float] | None


def encode(
    found: torch.Tensor, charges: torch.Tensor | None, scales: list[float] | None, ranks: Ranks | None
) -> torch.Tensor:
    """The findings as one float32 tensor, the same on all ranks. A collective of ``ranks``.

    Scales that differ would mix gradients of different units when they are averaged, in silence; they travel along, so
    that it is noticed.

    Args:
        found: shape ``(1,)``, 1.0 if a gradient was not finite.
        charges: shape ``(losses,)``, or ``None`` for a single loss.
        scales: the scale of each loss, ``None`` where nothing is scaled.
        ranks: who decides together.
    """
    parts = [found] if charges is None else [found, charges]
    if ranks is not None:
        if scales is not None:
            own = torch.tensor(scales, dtype=torch.float32).to(found.device)
            parts += [own, -own]
        return ranks.strongest(torch.cat(parts))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def decode(findings: torch.Tensor, losses: int, charged: bool) -> Findings:
    """Reads what :func:`encode` wrote; waits for the device."""
    found, *rest = findings.tolist()
    charges, rest = (rest[:losses], rest[losses:]) if charged else ([], rest)
    highest, lowest = rest[:losses], [-value for value in rest[losses:]]
    return Findings(
        bool(found), [k for k, charge in enumerate(charges) if charge], None if highest == lowest else lowest
    )


def unscale(
    optimizer: torch.optim.Optimizer,
    parameters: list[torch.Tensor],
    inverse: float,
    combined: CombinedGradients | None,
) -> torch.Tensor:
    """Multiplies gradients by ``inverse`` in place, in float32 where there are masters; 1.0 if one was not finite."""
    gradients = coalesced_gradients_of(parameters) if combined is None else combined.whole(parameters)
    if not masters.has_masters(optimizer):
        return multiply(gradients, inverse)
    pairs = masters.take_gradients(optimizer)
    full = [master.grad for _, master in pairs if master.grad is not None]
    taken = {id(half) for half, _ in pairs if half.grad is not None and not half.grad.is_sparse}
    found = multiply([*full, *gradients_of(p for p in parameters if id(p) not in taken)], inverse)
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
