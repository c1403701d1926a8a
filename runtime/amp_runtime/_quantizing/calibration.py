"""What a model is calibrated with: the first batches of a loader, as the model takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import nn

from amp_runtime._core.context import context
from amp_runtime._core.trees import map_tensors
from amp_runtime._distributed.group import from_all_processes

T = TypeVar("T")
Call = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of one call of a model."""


def calls_of(model: nn.Module, loader: Iterable[Any], inputs: Callable[[Any], Any] | None, batches: int) -> list[Call]:
    """The calls of ``model`` with the first batches of ``loader``, on its device.

    Raises:
        ValueError: on all ranks, if the loader of one gives no batch.
        TypeError: a batch is none that the model can be called with.
    """

    def read() -> list[Call]:
        found = [_call(model, batch, inputs) for batch in islice(iter(loader), batches)]
        if not found:
            raise ValueError(
                "amp.quantize got a calibration loader without a batch; give one with samples like those of training"
            )
        return found

    return together(read)


def together(step: Callable[[], T]) -> T:
    """What ``step`` gives, on every rank once all of them have it: none waits for one that has failed. A collective.

    Raises:
        RuntimeError: it failed on another rank; on this one its own error is raised.
    """
    problem: Exception | None = None
    try:
        result = step()
    except Exception as error:
        problem = error
    if context.distributed:
        told = from_all_processes(None if problem is None else f"{type(problem).__name__}: {problem}")
        for rank, text in enumerate(told):
            if text is not None and problem is None:
                raise RuntimeError(f"amp.quantize failed on rank {rank}: {text}")
    if problem is not None:
        raise problem
    return result


def _call(model: nn.Module, batch: Any, inputs: Callable[[Any], Any] | None) -> Call:
    given = batch if inputs is None else inputs(batch)
    if inputs is None and isinstance(given, (tuple, list)) and given:
        given = given[0]
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    given = map_tensors(lambda tensor: _like_float32(tensor.to(device)), given)
    if isinstance(given, torch.Tensor):
        return (given,), {}
    if isinstance(given, tuple):
        return given, {}
    if isinstance(given, Mapping):
        taken = inspect.signature(model.forward).parameters
        open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
        return (), {str(key): value for key, value in given.items() if open_ended or key in taken}
    raise TypeError(
        f"amp.quantize got a batch of {type(given).__name__}; give inputs=..., a function that makes of a batch the "
        "model's input: a tensor, a tuple of arguments or a dictionary of them"
    )


def _like_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16, torch.float64) else tensor


def at_least_two(call: Call) -> Call:
    """The same call with two samples where a tensor has one: export takes a length of one for a constant."""

    def doubled(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor]) if tensor.dim() and tensor.shape[0] == 1 else tensor

    changed: Call = map_tensors(doubled, call)
    return changed
