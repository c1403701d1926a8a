"""``amp.scaler.locate_overflow``: a step that is made once more, to see where it overflows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from amp_runtime._core.models import prepared_models
from amp_runtime._core.registry import IdentityMap
from amp_runtime._scaling.overflow import Observer, OverflowLocation, locate
from amp_runtime._scaling.skips import Skips


def replayed(
    scaler: Any, step_function: Callable[[], Any], models: Iterable[torch.nn.Module] | None
) -> OverflowLocation | None:
    """What ``amp.scaler.locate_overflow`` returns."""

    def watch(observer: Observer | None) -> None:
        scaler._skips.observer = observer

    watched = prepared_models() if models is None else list(models)
    if not watched:
        raise ValueError("amp.scaler.locate_overflow found no prepared model; pass models=[...]")
    kept = {name: vars(scaler)[name] for name in ("_last_unit", "_loss_id", "_losses", "_sharing", "_skips")}
    taking_part, records = set(scaler._taking_part), scaler._records
    scaler._records, scaler._locating, scaler._skips = IdentityMap(), True, Skips()
    try:
        found: OverflowLocation | None = locate(step_function, watched, watch)
        return found
    finally:
        scaler._locating = False
        scaler._records, scaler._taking_part = records, taking_part
        vars(scaler).update(kept)
