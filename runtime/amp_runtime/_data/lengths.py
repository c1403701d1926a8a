"""Numbers that count batches: what they are for one rank."""

from __future__ import annotations

from typing import Any, TypeVar

from amp_runtime._core.context import context
from amp_runtime._data.loader import as_shared, is_shared
from amp_runtime._distributed.metrics import reduce_sum

N = TypeVar("N", int, float)
T = TypeVar("T")


def share_of(count: N, loader: Any = None) -> N:
    """How many of ``count`` steps one rank makes; ``count`` itself alone.

    For schedules that count steps by the length of the dataset: ``amp.share_of(epochs * len(dataset) // batch_size,
    loader)`` is to ``len(amp.prepare_loader(loader))`` as the number itself is to ``len(loader)``. It is no
    collective: one rank may ask alone.

    Args:
        count: a number of steps over the whole data.
        loader: the loader that the steps take their batches from, prepared or not. ``None`` divides by the number of
            processes and rounds up, as a loader does that keeps its last batch.

    Returns:
        A number of the same type; an integer is rounded up.
    """
    if not context.distributed:
        return count
    whole, own = context.world_size, 1
    if loader is not None:
        shared = as_shared(loader)
        source = shared.__dict__.get("_amp_whole", shared.__dict__.get("_source", loader))
        whole, own = _length(source), _length(shared)
        if not whole:
            return count
    if isinstance(count, int):
        return -(-count * own // whole)
    return count * own / whole


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except TypeError:
        raise TypeError(
            f"amp.share_of got a {type(loader).__name__} without a length; allowed: one that has a length, or no loader"
        ) from None


def sum_of_shares(value: T, loader: Any) -> T:
    """The sum over the processes of what each counted in its share of ``loader``; ``value`` itself alone.

    For loops that train on one loader and evaluate another: where each process goes over the whole of ``loader``, all
    have counted the same, and ``value`` is given back as it is. A collective where the loader is prepared.

    Args:
        value: as for :func:`reduce_sum`.
        loader: what the loop iterates.

    Returns:
        The same structure as :func:`reduce_sum` gives.
    """
    return reduce_sum(value) if is_shared(loader) else value
