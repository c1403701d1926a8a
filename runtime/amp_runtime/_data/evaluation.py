"""An evaluation shared out: no sample is repeated, none left out, and what all have found is put together at its end.

Each process takes whole batches of the loader, one after the other: the first ones go to rank 0. A batch is therefore
the same as in one process, so are its predictions, and what was listed comes back in order when the ranks' lists are
joined. A rank may have no batch at all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import torch
import torch.utils.data as data

from amp_runtime._core.context import context
from amp_runtime._core.trees import rebuild_sequence
from amp_runtime._data.loader import copy_with, is_shared, shared_seed
from amp_runtime._data.shards import Share, Wrapper, can_be_tracked
from amp_runtime._distributed import sharding
from amp_runtime._distributed.group import from_all_processes

L = TypeVar("L")


class PartOfBatches(Wrapper, data.Sampler[Any]):
    """This rank's part of what a sampler draws: as many in a row as it gets, the first ones for rank 0."""

    def __init__(self, source: Any, share: Share) -> None:
        self._source = source
        self._share = share

    def __iter__(self) -> Iterator[Any]:
        with self._share.randomness():
            items = list(self._source)
        self._share.epoch += 1
        start, end = self._bounds(len(items))
        return iter(items[start:end])

    def __len__(self) -> int:
        start, end = self._bounds(len(self._source))
        return end - start

    def _bounds(self, whole: int) -> tuple[int, int]:
        share = self._share
        return whole * share.rank // share.world_size, whole * (share.rank + 1) // share.world_size


class PartOfEvaluation(Wrapper):
    """A loader of this rank's part. While it is iterated, models in evaluation mode run alone: others may have less."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        context.evaluations += 1
        try:
            yield from self._source
        finally:
            context.evaluations -= 1

    def __len__(self) -> int:
        return len(self._source)


def share_evaluation(loader: L) -> L:
    """This process's batches of a loader that is evaluated; the loader itself alone.

    ``for x, y in amp.share_evaluation(test_loader):`` gives each rank whole batches, as one process would see them, and
    none twice: rank 0 the first ones, the last rank the last. Ranks can have different numbers of batches, also none,
    so nothing in the loop may wait for the others; prepared models in evaluation mode do not. The loader itself stays
    whole: ``len(test_loader)`` counts all. What the loop has counted is put together behind it by
    :func:`amp.sum_evaluated`, what it has listed by :func:`amp.gather_evaluated`. A shuffled loader has an order that
    all ranks have alike.

    The first rank reads alone what has no order that all could know before: a loader of an iterable dataset, one with
    an iteration of its own, and what is no ``DataLoader``.

    Args:
        loader: what is evaluated, prepared or not.

    Returns:
        What looks like a loader of the same class with the same settings. It is a collective when it is first made for
        a loader.

    Raises:
        RuntimeError: a model is sharded, whose forward passes need all ranks equally often.
    """
    whole: Any = loader
    if context.distributed:
        if sharding.has_sharded_models():
            raise RuntimeError(
                "amp.share_evaluation was called where a model is sharded: its forward passes need all ranks, and "
                "shares can have different numbers of batches. Evaluate on a loader that every rank reads alike"
            )
        if is_shared(whole):
            whole = whole.__dict__.get("_amp_whole", whole.__dict__.get("_source"))
            if whole is None:
                return loader  # the script's own sampler has shared it out
        whole = _part(whole)
    result: L = whole
    return result


def _part(loader: Any) -> Any:
    if (
        not isinstance(loader, data.DataLoader)
        or isinstance(loader.dataset, data.IterableDataset)
        or not can_be_tracked(loader)
    ):
        return PartOfEvaluation(loader if context.rank == 0 else [])
    earlier = loader.__dict__.get("_amp_evaluated")
    if earlier is None:
        share = Share("join", shared_seed(loader.generator))
        index = "sampler" if loader.batch_sampler is None else "batch_sampler"
        earlier = copy_with(loader, **{index: PartOfBatches(getattr(loader, index), share)})
        loader.__dict__["_amp_evaluated"] = earlier
    return PartOfEvaluation(earlier)


def sum_evaluated(*values: Any) -> Any:
    """The sums over the processes of what each has counted in its part of an evaluation; the values themselves alone.

    ``correct, total = amp.sum_evaluated(correct, total)``. Integers are summed exactly, of any size; floating-point
    numbers in the order of the ranks, so that all ranks have the same sum, which differs from that of one process by
    the order of additions alone. A rank that had no batch gives what it began with: a plain 0 where others have
    tensors. A collective, one for all values.

    Args:
        *values: numbers, tensors, arrays, and nested dictionaries, lists and tuples of them, alike on all ranks.

    Returns:
        The sum of the one value, or a tuple of sums; tensors on the device where they were.

    Raises:
        ValueError: lists or dictionaries differ between the ranks in what they hold.
    """
    sums = values
    if context.distributed:
        sums = tuple(_unpacked(total) for total in reduce(_added, from_all_processes(_packed(list(values)))))
    return sums[0] if len(sums) == 1 else sums


def gather_evaluated(*lists: list[Any]) -> Any:
    """The lists of all processes joined, as one process would have filled them; the lists themselves alone.

    ``predictions, labels = amp.gather_evaluated(predictions, labels)`` behind a loop over
    ``amp.share_evaluation(loader)``: what the first rank has comes first, in the order of the loader. A collective,
    one for all lists, on which every rank gets everything.

    Args:
        *lists: lists of whatever can be pickled.

    Returns:
        One list, or a tuple of lists; tensors on a device of the kind where they were.

    Raises:
        TypeError: something else than a list was given.
    """
    for given in lists:
        if not isinstance(given, list):
            raise TypeError(f"amp.gather_evaluated got {type(given).__name__}; allowed: lists")
    joined = lists
    if context.distributed:
        parts = from_all_processes(_packed(list(lists)))
        joined = tuple([_unpacked(item) for part in parts for item in part[number]] for number in range(len(lists)))
    return joined[0] if len(joined) == 1 else joined


@dataclass(frozen=True)
class _Travelling:
    """A tensor on its way to other processes, and the kind of device that it comes from."""

    tensor: torch.Tensor
    device: str


def _packed(value: Any) -> Any:
    return _map(value, torch.Tensor, lambda tensor: _Travelling(tensor.detach().cpu(), tensor.device.type))


def _unpacked(value: Any) -> Any:
    # Of the GPUs, the one of this rank.
    return _map(value, _Travelling, lambda item: item.tensor.to(item.device))


def _map(value: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    """Applies ``change`` to what is of a kind in nested lists, tuples and dictionaries."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, Mapping):
        return _with_items(value, {key: _map(item, kind, change) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return rebuild_sequence(value, [_map(item, kind, change) for item in value])
    return value


def _with_items(old: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same kind that holds ``items``."""
    if not isinstance(old, MutableMapping):
        return items
    clone = copy.copy(old)
    clone.update(items)
    return clone


def _added(one: Any, other: Any) -> Any:
    """The sum of two ranks' values, element by element."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            raise ValueError(f"amp.sum_evaluated got keys {list(one)} and {list(other)}; allowed: equal ones")
        return _with_items(one, {key: _added(item, other[key]) for key, item in one.items()})
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            raise ValueError(f"amp.sum_evaluated got lists of {len(one)} and {len(other)}; allowed: equal lengths")
        return rebuild_sequence(one, [_added(*pair) for pair in zip(one, other, strict=True)])
    if isinstance(one, _Travelling) or isinstance(other, _Travelling):
        device = one.device if isinstance(one, _Travelling) else other.device
        return _Travelling(torch.as_tensor(_plain(one) + _plain(other)), device)
    return one + other


def _plain(value: Any) -> Any:
    return value.tensor if isinstance(value, _Travelling) else value
