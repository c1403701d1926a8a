"""Where gradients overflowed, for the error that ends a row of skipped steps."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from amp_runtime._core.models import name_of
from amp_runtime._scaling.agreement import Ranks
from amp_runtime._scaling.gradients import is_finite, parameters_of
from amp_runtime._scaling.overflow import OverflowLocation


def explained(
    own: OverflowLocation | None, ranks: Ranks | None, optimizers: Iterable[torch.optim.Optimizer]
) -> tuple[str, OverflowLocation | None]:
    """Sentences that say where it was, and the place on some rank. A collective of ``ranks``.

    Args:
        own: where it happened on this rank.
        ranks: who decided to skip.
        optimizers: those whose gradients may be bad.
    """
    found = [own] if ranks is None else ranks.gather(own)
    rank, location = next(((r, place) for r, place in enumerate(found) if place is not None), (0, None))
    if location is None:
        bad = _bad_parameters(optimizers)
        return f"{bad}amp.scaler.locate_overflow(step_function) tells which module it was. ", None
    return f"{location}{f' (on rank {rank})' if len(found) > 1 else ''}. ", location


def _bad_parameters(optimizers: Iterable[torch.optim.Optimizer]) -> str:
    names = []
    for optimizer in optimizers:
        for index, parameter in enumerate(parameters_of(optimizer)):
            if parameter.grad is not None and not is_finite(parameter.grad):
                names.append(name_of(parameter) or f"parameter {index} of {type(optimizer).__name__}")
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"Not finite now: the gradient of {shown}. " if names else ""
