"""Optimizers load float32 state for half parameters, which torch would round to half, and whole state for shards."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from amp_runtime._core.dtensors import any_sharded, is_sharded, shard_like
from amp_runtime._precision import masters

_original: Any = torch.optim.Optimizer.load_state_dict


@functools.wraps(torch.optim.Optimizer.load_state_dict)
def _load_in_full(self: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    state_dict = with_shards(self, state_dict)
    if not masters.has_masters(self):
        _original(self, state_dict)
        return
    with masters.standing_in(self):
        _original(self, state_dict)


def with_shards(optimizer: torch.optim.Optimizer, state_dict: Any) -> Any:
    """A state with this rank's shards in the place of whole tensors, for parameters that are sharded.

    As an optimizer of whole parameters has saved it. It is a copy where it differs.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not (any_sharded(parameters) and isinstance(state_dict, Mapping) and "state" in state_dict):
        return state_dict
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    holders = dict(zip(numbers, parameters, strict=False))  # torch tells of numbers that differ
    state = dict(state_dict["state"])
    for number, held in state.items():
        like = holders.get(number)
        if like is not None and is_sharded(like):
            state[number] = {key: _placed(value, like) for key, value in held.items()}
    return {**state_dict, "state": state}


def _placed(value: Any, like: torch.Tensor) -> Any:
    whole = isinstance(value, torch.Tensor) and not is_sharded(value)
    return shard_like(value, like) if whole and value.shape == like.shape else value


def watch_optimizers() -> None:
    """Has ``torch.optim.Optimizer.load_state_dict`` see masters in the place of half parameters, and make shards."""
    global _original
    if torch.optim.Optimizer.load_state_dict is not _load_in_full:
        _original = torch.optim.Optimizer.load_state_dict
        torch.optim.Optimizer.load_state_dict = _load_in_full  # type: ignore[method-assign]


def stop_watching_optimizers() -> None:
    """Gives it back, unless the script has replaced it."""
    if torch.optim.Optimizer.load_state_dict is _load_in_full:
        torch.optim.Optimizer.load_state_dict = _original  # type: ignore[method-assign]
