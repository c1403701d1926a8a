"""Gradients that a function is about to edit: they get their true values first."""

from __future__ import annotations

from typing import Any

import torch

from amp_runtime._core.living import living
from amp_runtime._distributed import averaging, passes
from amp_runtime._scaling.gradients import HELD_AS, coalesced_gradients_of
from amp_runtime._scaling.records import with_masters


def make_true(scaler: Any, parameters: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor | float]:
    """Unscales the optimizers that hold any of ``parameters``, for a function that edits gradients.

    Args:
        scaler: ``amp.scaler``.
        parameters: any tensors.

    Returns:
        Those of them that no optimizer holds, and whose gradients are still scaled; and what they are multiplied
        by.
    """
    if scaler._locating:
        return [], 1.0
    passes.end_passes()
    loose = {id(parameter): parameter for parameter in parameters}
    _make_held_true(scaler, list(scaler._records), loose)
    if (
        scaler._looks_at_gradients
        and not scaler._in_closure
        and any(p not in scaler._held_by_none for p in loose.values())
    ):
        _make_held_true(scaler, _unseen_optimizers(scaler, loose), loose)  # as in the first iteration
        for parameter in loose.values():
            scaler._held_by_none[parameter] = True
    unseen = list(loose.values())
    delayed = averaging.delayed(unseen)
    if delayed:
        averaging.average_gradients(delayed)
    coalesced_gradients_of(unseen)
    if scaler._losses == 0 or scaler._in_closure or not scaler.is_enabled():
        return [], 1.0
    scaled = [parameter for parameter in unseen if not scaler._loose.are_true(parameter)]
    return scaled, scaler._unit.on(scaled[0].device) if scaled else 1.0


def _make_held_true(scaler: Any, optimizers: list[torch.optim.Optimizer], loose: dict[int, torch.Tensor]) -> None:
    """Unscales those of ``optimizers`` that hold any of the ``loose`` parameters, which it takes out of there."""
    for optimizer in optimizers:
        held = with_masters(optimizer)
        if any(id(parameter) in loose for parameter in held):
            if scaler._looks_at_gradients or averaging.delayed(held):
                scaler.unscale_(optimizer)
            for parameter in held:
                loose.pop(id(parameter), None)


def _unseen_optimizers(scaler: Any, loose: dict[int, torch.Tensor]) -> list[torch.optim.Optimizer]:
    """The optimizers of the ``loose`` parameters that never stepped here, in the same order on all ranks."""
    places = {key: place for place, key in enumerate(loose)}
    found, alive = [], living(torch.optim.Optimizer)
    inside = {id(vars(optimizer).get(name)) for optimizer in alive for name in HELD_AS}  # of a LARC, for instance
    for optimizer in alive:
        if optimizer not in scaler._records and id(optimizer) not in inside and hasattr(optimizer, "param_groups"):
            held = [places[id(p)] for p in with_masters(optimizer) if id(p) in places]
            if held:
                found.append((min(held), -len(held), type(optimizer).__name__, optimizer))
    return [optimizer for *_, optimizer in sorted(found, key=lambda entry: entry[:3])]


def combined_gradients(scaler: Any, parameters: list[torch.Tensor]) -> list[torch.Tensor] | None:
    """The flat buffers of exactly these parameters' gradients, if ``amp.init(combine_grad=True)`` made some.

    Args:
        scaler: ``amp.scaler``.
        parameters: any tensors.

    Returns:
        One-dimensional tensors, one for each dtype and device; ``None`` if other gradients are among them.
    """
    for _, record in scaler._records.items():
        if record.combined is not None and record.combined.holds(parameters):
            whole: list[torch.Tensor] = record.combined.whole(parameters)
            return whole
    return None
