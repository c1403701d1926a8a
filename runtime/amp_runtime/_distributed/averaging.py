"""Gradients that are averaged over the processes once, just before the optimizer's step.

For models prepared with ``delay_allreduce=True``. Averaging is idempotent on gradients that agree already, so
what is left from an averaged step and accumulated further stays right: ``mean(a + b_rank) == a +
mean(b_rank)``.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from amp_runtime._core.context import context
from amp_runtime._core.hooks import Hook
from amp_runtime._core.models import note_copy, parameter_slots, same_objects
from amp_runtime._core.registry import TensorMap
from amp_runtime._core.rows import table_of
from amp_runtime._distributed.buckets import buckets_of, flatten, unflatten
from amp_runtime._distributed.copying import copy_from_main_process
from amp_runtime._distributed.exchange import PLAIN, Exchange, real_view

_BUCKET_ELEMENTS = 8 * 2**20

_delayed: TensorMap[Exchange] = TensorMap()
_models: weakref.WeakKeyDictionary[nn.Module, tuple[Exchange, list[nn.Parameter]]] = weakref.WeakKeyDictionary()


def delay(model: nn.Module, exchange: Exchange = PLAIN) -> None:
    """Has the gradients of a model averaged at the step, and says how they travel.

    Its parameters are those that it has at the time: a module that is replaced is noticed at the next forward pass, or
    at the next step where the script calls parts of the model.
    """
    _mark(model, exchange)
    model.register_forward_pre_hook(_Following(model))


def forget_all() -> None:
    """Averages nothing at the step any more; ``amp.shutdown`` does it."""
    _delayed.clear()
    _models.clear()


def follow_models() -> None:
    """Marks parameters that have come into a marked model since, with rank 0's values. A collective where some have."""
    for model, (exchange, slots) in list(_models.items()) if _models else ():
        if not same_objects(parameter_slots(model), slots):
            copy_from_main_process(model)
            _mark(model, exchange)


class _Following(Hook):
    """A forward pre-hook; copied with its model, it notes the copy."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(_follow_before_training)
        self._model = weakref.ref(model)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        copied = memo.get(id(self._model()))
        if not isinstance(copied, nn.Module):
            return self
        note_copy(copied)
        return _Following(copied)


def _follow_before_training(model: nn.Module, _: Any) -> None:
    # A copy that is not trained has the hook too.
    is_evaluated = context.evaluations > 0 and not model.training
    if model in _models and torch.is_grad_enabled() and not is_evaluated:
        follow_models()


def _mark(model: nn.Module, exchange: Exchange) -> None:
    slots = parameter_slots(model)
    _models[model] = exchange, slots
    for parameter in slots:
        if table_of(parameter) is None:  # rows have their whole gradient on their own rank
            _delayed[parameter] = exchange


def delayed(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those of ``parameters`` that are marked, in order and without repetition; none in a single process."""
    if not context.distributed or not _delayed:
        return []
    return list({id(p): p for p in parameters if p in _delayed}.values())


def travel_plainly(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether these marked parameters' gradients are simply averaged, so that :func:`average_tensors` does the same."""
    return all((_delayed.get(parameter) or PLAIN) == PLAIN for parameter in parameters)


def average_gradients(parameters: list[torch.Tensor]) -> None:
    """Replaces each parameter's gradient by its mean over the processes. A collective.

    A gradient that exists on some ranks only counts as zero on the others and then exists on all; one that
    exists nowhere stays ``None``. A rank waits for the answer only where one of its own is missing.
    """
    by_exchange: dict[Exchange, list[torch.Tensor]] = {}
    for parameter in parameters:
        by_exchange.setdefault(_delayed.get(parameter) or PLAIN, []).append(parameter)
    for exchange, members in by_exchange.items():
        for bucket in buckets_of(members, exchange.message_size or _BUCKET_ELEMENTS):
            bucket.launch(exchange, overlap=False)
            bucket.finish(exchange, retain=False)


def average_tensors(tensors: Sequence[torch.Tensor]) -> None:
    """Replaces dense tensors by their means over the processes, in place. A collective."""
    with torch.no_grad():
        groups: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for tensor in tensors:
            groups.setdefault((tensor.dtype, tensor.device), []).append(real_view(tensor.detach()))
        for members in groups.values():
            flat = flatten(members).div_(dist.get_world_size())
            dist.all_reduce(flat)
            torch._foreach_copy_(members, list(unflatten(flat, members)))
