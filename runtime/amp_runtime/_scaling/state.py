"""Reading and writing the scaler's state in a checkpoint."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger("amp_runtime")
_TORCH_KEYS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
_APEX_PREFIX = "loss_scaler"


@dataclass
class ScalerState:
    """What a checkpoint says, whoever wrote it.

    Attributes:
        scales: the scale of each loss, at least one.
        good_steps: for each loss the number of good steps since its scale changed.
        growth_factor: ``None`` where the format does not hold it, and so the next two.
        backoff_factor: see ``growth_factor``.
        growth_interval: see ``growth_factor``.
        skips_in_a_row: how many steps were skipped just before.
        skipped_steps: how many steps were skipped in all.
        one_for_all: the format knows a single scale, which then fits every loss.
    """

    scales: list[float]
    good_steps: list[int]
    growth_factor: float | None = None
    backoff_factor: float | None = None
    growth_interval: int | None = None
    skips_in_a_row: int = 0
    skipped_steps: int = 0
    one_for_all: bool = False


def state_of(scaler: Any) -> dict[str, Any]:
    """What ``amp.scaler.state_dict`` returns."""
    if not (scaler.is_enabled() or scaler._loaded):
        return {}
    scaler._skips.read()
    return _write(
        ScalerState(
            scales=[loss_scale.value for loss_scale in scaler._scales],
            good_steps=[loss_scale.good_steps for loss_scale in scaler._scales],
            growth_factor=scaler.growth_factor,
            backoff_factor=scaler.backoff_factor,
            growth_interval=scaler.growth_interval,
            skips_in_a_row=scaler._skips.in_a_row,
            skipped_steps=scaler._skips.total,
        )
    )


def load_into(scaler: Any, state_dict: dict[str, Any]) -> None:
    """What ``amp.scaler.load_state_dict`` does; see there."""
    if isinstance(state_dict, dict) and not state_dict:
        return
    state = _read(state_dict)
    if not state.one_for_all and len(state.scales) != len(scaler._scales):
        _log.warning(
            "the scaler's state has %d loss scales, amp.init got num_losses=%d",
            len(state.scales),
            len(scaler._scales),
        )
    for loss_id, loss_scale in enumerate(scaler._scales):
        source = 0 if state.one_for_all else loss_id
        if source >= len(state.scales):
            break
        value = loss_scale.value
        if loss_scale.dynamic:
            value = max(min(state.scales[source], scaler.max_scale), scaler.min_scale)
        loss_scale.put(value, state.good_steps[source])
    if state.growth_factor is not None and state.backoff_factor is not None and state.growth_interval is not None:
        scaler.growth_factor = state.growth_factor
        scaler.backoff_factor = state.backoff_factor
        scaler.growth_interval = state.growth_interval
    scaler._skips.read()
    scaler._skips.in_a_row, scaler._skips.total = state.skips_in_a_row, state.skipped_steps
    scaler._loaded = True
    scaler._set_from_outside += 1


def _write(state: ScalerState) -> dict[str, Any]:
    """A state with the keys of ``torch.amp.GradScaler``, which it can load, and a few more."""
    written: dict[str, Any] = {
        "scale": state.scales[0],
        "growth_factor": state.growth_factor,
        "backoff_factor": state.backoff_factor,
        "growth_interval": state.growth_interval,
        "_growth_tracker": state.good_steps[0],
        "skips_in_a_row": state.skips_in_a_row,
        "skipped_steps": state.skipped_steps,
    }
    if len(state.scales) > 1:
        pairs = zip(state.scales, state.good_steps, strict=True)
        written["losses"] = [{"scale": scale, "_growth_tracker": steps} for scale, steps in pairs]
    return written


def _read(state: Any) -> ScalerState:
    """Understands a state of this package, of ``torch.amp.GradScaler``, or of Apex's ``amp.state_dict()``.

    Raises:
        TypeError: it is no mapping.
        ValueError: it has the keys of none of them, or holds a number that cannot be a scale.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"amp.scaler.load_state_dict got {type(state).__name__}; allowed: a dict from a state_dict()")
    if all(str(key).startswith(_APEX_PREFIX) for key in state):
        return _read_apex(state)
    missing = [key for key in _TORCH_KEYS if key not in state]
    if missing:
        raise ValueError(
            f"amp.scaler.load_state_dict got a state with the keys {sorted(map(str, state))}; allowed: a state of "
            f"amp.scaler or torch.amp.GradScaler, with {', '.join(_TORCH_KEYS)}, or Apex's amp.state_dict(), with "
            f"{_APEX_PREFIX}0, {_APEX_PREFIX}1, ..."
        )
    losses = state.get("losses", [state])
    return ScalerState(
        scales=[_scale(loss["scale"]) for loss in losses],
        good_steps=[int(loss["_growth_tracker"]) for loss in losses],
        growth_factor=float(state["growth_factor"]),
        backoff_factor=float(state["backoff_factor"]),
        growth_interval=int(state["growth_interval"]),
        skips_in_a_row=int(state.get("skips_in_a_row", 0)),
        skipped_steps=int(state.get("skipped_steps", 0)),
        one_for_all="losses" not in state,
    )


def _read_apex(state: Mapping[str, Any]) -> ScalerState:
    entries = [state[key] for key in sorted(state, key=_number)]
    for entry in entries:
        if not isinstance(entry, Mapping) or "loss_scale" not in entry:
            raise ValueError(
                f"amp.scaler.load_state_dict got a {_APEX_PREFIX} of {entry!r}; allowed: what Apex saves, "
                "{'loss_scale': number, 'unskipped': number}"
            )
    return ScalerState(
        scales=[_scale(entry["loss_scale"]) for entry in entries],
        good_steps=[int(entry.get("unskipped", 0)) for entry in entries],
    )


def _number(key: str) -> int:
    digits = key.removeprefix(_APEX_PREFIX)
    if not digits.isdecimal():
        raise ValueError(
            f"amp.scaler.load_state_dict got the key {key!r}; allowed: {_APEX_PREFIX} and the number of a loss"
        )
    return int(digits)


def _scale(value: Any) -> float:
    scale = float(value)
    if not math.isfinite(scale) or scale < 0:
        raise ValueError(f"amp.scaler.load_state_dict got the scale {value!r}; allowed: a finite number, not negative")
    return scale
