"""Optimizers load float32 state for half parameters, which torch would round to half."""

from __future__ import annotations

import functools
from typing import Any

import torch

from amp_runtime._precision import masters

_original: Any = torch.optim.Optimizer.load_state_dict


@functools.wraps(torch.optim.Optimizer.load_state_dict)
def _load_in_full(self: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    if not masters.has_masters(self):
        _original(self, state_dict)
        return
    with masters.standing_in(self):
        _original(self, state_dict)


def watch_optimizers() -> None:
    """Makes ``torch.optim.Optimizer.load_state_dict`` see masters in the place of half parameters."""
    global _original
    if torch.optim.Optimizer.load_state_dict is not _load_in_full:
        _original = torch.optim.Optimizer.load_state_dict
        torch.optim.Optimizer.load_state_dict = _load_in_full  # type: ignore[method-assign]


def stop_watching_optimizers() -> None:
    """Gives it back, unless the script has replaced it."""
    if torch.optim.Optimizer.load_state_dict is _load_in_full:
        torch.optim.Optimizer.load_state_dict = _original  # type: ignore[method-assign]
