"""Optimizers load float32 state for half parameters, which torch would round to half, and whole state for shards."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from amp_runtime._core.dtensors import any_sharded, is_sharded, shard_like
from amp_runtime._core.rows import any_tables, has_rows, table_of
from amp_runtime._distributed.rows import put_together
from amp_runtime._precision import masters
from amp_runtime._precision.wrapping import stop_watching_wrappers

_original: Any = torch.optim.Optimizer.load_state_dict
_original_state: Any = torch.optim.Optimizer.state_dict


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
    has_parts = any_sharded(parameters) or has_rows(parameters)
    if not (has_parts and isinstance(state_dict, Mapping) and "state" in state_dict):
        return state_dict
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    holders = dict(zip(numbers, parameters, strict=False))  # torch tells of numbers that differ
    state = dict(state_dict["state"])
    for number, held in state.items():
        like = holders.get(number)
        if like is not None and (is_sharded(like) or table_of(like) is not None):
            state[number] = {key: _placed(value, like) for key, value in held.items()}
    return {**state_dict, "state": state}


@functools.wraps(torch.optim.Optimizer.state_dict)
def _state_in_full(self: torch.optim.Optimizer) -> dict[str, Any]:
    """The state with whole tensors for tables whose rows are shared out. A collective where the optimizer has some."""
    state: dict[str, Any] = _original_state(self)
    parameters = [parameter for group in self.param_groups for parameter in group["params"]]
    if not has_rows(parameters):
        return state
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    held = dict(state["state"])
    for number, parameter in zip(numbers, parameters, strict=True):
        table = table_of(parameter)
        if table is not None and number in held:
            held[number] = {
                key: put_together(table, value) if _is_by_row(value, parameter) else value
                for key, value in held[number].items()
            }
    return {**state, "state": held}


def _is_by_row(value: Any, parameter: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape


def _placed(value: Any, like: torch.Tensor) -> Any:
    table = table_of(like)
    if table is not None:
        by_row = isinstance(value, torch.Tensor) and value.shape == (table.rows, *like.shape[1:])
        return table.part_of(value) if by_row else value
    whole = isinstance(value, torch.Tensor) and not is_sharded(value)
    return shard_like(value, like) if whole and value.shape == like.shape else value


def watch_optimizers() -> None:
    """Has ``torch.optim.Optimizer.load_state_dict`` see masters in the place of half parameters, and make shards.

    Where rows are shared out, ``state_dict`` gives whole tensors.
    """
    global _original, _original_state
    if any_tables() and torch.optim.Optimizer.state_dict is not _state_in_full:
        _original_state = torch.optim.Optimizer.state_dict
        torch.optim.Optimizer.state_dict = _state_in_full  # type: ignore[method-assign]
    if torch.optim.Optimizer.load_state_dict is not _load_in_full:
        _original = torch.optim.Optimizer.load_state_dict
        torch.optim.Optimizer.load_state_dict = _load_in_full  # type: ignore[method-assign]


def stop_watching_optimizers() -> None:
    """Gives it back, unless the script has replaced it; wrappers are left to themselves too."""
    stop_watching_wrappers()
    if torch.optim.Optimizer.load_state_dict is _load_in_full:
        torch.optim.Optimizer.load_state_dict = _original  # type: ignore[method-assign]
    if torch.optim.Optimizer.state_dict is _state_in_full:
        torch.optim.Optimizer.state_dict = _original_state  # type: ignore[method-assign]
