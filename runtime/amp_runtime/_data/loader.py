"""``amp.prepare_loader``: each process reads its own part of the training data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
import torch.utils.data as data
from torch.utils.data.dataloader import _BaseDataLoaderIter

from amp_runtime._core.context import context
from amp_runtime._data.batches import SharedBatches
from amp_runtime._data.division import Division
from amp_runtime._data.seeding import mix
from amp_runtime._data.shards import (
    EpochCounter,
    Share,
    SharedIterableDataset,
    SharedSampler,
    ShuffledSampler,
    Uneven,
    can_be_tracked,
)
from amp_runtime._data.streams import SeedWorkers
from amp_runtime._data.tracked import forget, track
from amp_runtime._distributed.group import from_main_process, inside_main_process_first

L = TypeVar("L")

_UNEVEN: tuple[Uneven, ...] = ("pad", "drop", "join")
_prepared_loaders = 0


def count_anew() -> None:
    """Gives the loaders that are prepared from here on the seeds of the first ones again; ``amp.shutdown`` does it."""
    global _prepared_loaders
    _prepared_loaders = 0


def prepare_loader(loader: L, *, uneven: Uneven = "pad", sharded: bool = False) -> L:
    """Gives each process its own part of the training data; alone it returns the loader itself.

    A ``DataLoader`` comes back as a loader of the same class with the same settings. Each rank draws batches
    of the same size as before, so together they see ``world_size`` times as many samples a step. A shuffled
    loader has a new order in each epoch, without ``set_epoch``. Custom samplers are shared out a batch at a time, so
    that samples drawn for one batch stay together; batch samplers, iterable datasets and any other iterable of
    batches item by item. All draw the same random numbers on every rank. Samplers of map datasets are instances of
    torch's ``DistributedSampler``, for which libraries look: their ``set_epoch`` chooses the next epoch.

    All ranks get equally many batches: otherwise a rank without data would wait for ever. With ``"join"`` a rank whose
    data has ended gets copies of its first batch until all have ended, so that the script's own loop meets the
    others in every collective; its loss, given to ``amp.scaler.scale``, weighs nothing then, gradients are means over
    the ranks that have data, and synchronised batch norm leaves the copies out. See :func:`amp.shadowing`. Each
    batch costs a small exchange, as with ``sharded``.

    A prepared ``DataLoader`` knows its position: :func:`amp.loader_state`.

    Args:
        loader: a ``torch.utils.data.DataLoader``, or an iterable of batches.
        uneven: what happens to an incomplete last round: ``"pad"`` repeats samples, ``"drop"`` leaves it out,
            ``"join"`` uses it without repeating any.
        sharded: the ranks' loaders hold different data already, such as files of their own. They are not shared out
            again, may differ in length, and ``uneven`` says what happens when one ends before the others.

    Returns:
        The prepared loader; the same one again for the same ``DataLoader``.

    Raises:
        TypeError: ``loader`` is not iterable, or has an iteration of its own that cannot be kept in step.
        ValueError: ``uneven`` is none of the three.
    """
    if uneven not in _UNEVEN:
        raise ValueError(f"prepare_loader got uneven={uneven!r}; allowed: {', '.join(map(repr, _UNEVEN))}")
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise TypeError(
            f"prepare_loader got {type(loader).__name__}; allowed: a torch DataLoader or another iterable of "
            "batches. Build the loader first: amp.prepare_loader(DataLoader(dataset, ...))"
        )
    prepared: Any = loader
    if isinstance(loader, data.DataLoader):
        prepared = _prepare(loader, uneven, sharded) if context.distributed else _tracked(loader)
    elif context.distributed and not isinstance(loader, SharedBatches):
        prepared = SharedBatches(loader, Share(uneven, shared_seed(None), sharded), sharded or uneven == "join")
    result: L = prepared
    return result


def _tracked(loader: data.DataLoader[Any]) -> data.DataLoader[Any]:
    if can_be_tracked(loader) and "_amp_position" not in loader.__dict__:
        track(loader, division=_division(loader, Share("pad", 0)))
    return loader


def _prepare(loader: data.DataLoader[Any], uneven: Uneven, sharded: bool) -> data.DataLoader[Any]:
    """This rank's loader, for one of the script's."""
    earlier: data.DataLoader[Any] | None = loader.__dict__.get("_amp_prepared")
    if earlier is not None:
        return earlier
    in_rounds = sharded or uneven == "join"
    if in_rounds and not can_be_tracked(loader):
        raise TypeError(
            f"prepare_loader got {type(loader).__name__} with uneven={uneven!r} and sharded={sharded}, whose class has "
            "an iteration of its own that cannot be kept in step; allowed then: a torch DataLoader"
        )
    if sharded:
        loader.__dict__["_amp_sharded"] = True
    counters: list[Any] = []
    prepared, division = loader, None
    if not (sharded or is_shared(loader)):
        share = Share(uneven, shared_seed(loader.generator))
        prepared, counters = _share_loader(loader, share)
        division = _division(loader, share)
    elif "_amp_position" in loader.__dict__:
        return loader  # prepared before, perhaps as the result of another
    if can_be_tracked(prepared):
        track(prepared, counters, uneven if in_rounds else None, division)
    elif prepared is not loader:
        prepared.__dict__["worker_init_fn"] = SeedWorkers(loader.worker_init_fn)
    if prepared is not loader:
        loader.__dict__["_amp_prepared"] = prepared
        prepared.__dict__["_amp_whole"] = loader
    return prepared


def is_shared(loader: Any) -> bool:
    """Whether the ranks read different parts of a loader already.

    Prepared here, or by a DistributedSampler of the script.
    """
    if not isinstance(loader, data.DataLoader):
        return isinstance(loader, SharedBatches)
    if "_amp_sharded" in loader.__dict__:
        return True
    parts = (
        loader.dataset,
        loader.sampler,
        loader.batch_sampler,
        getattr(loader.batch_sampler, "sampler", None),
    )
    return any(isinstance(part, (SharedIterableDataset, data.DistributedSampler)) for part in parts)


def as_shared(loader: Any) -> Any:
    """What ``prepare_loader`` has given for a loader, or something like it, to ask for its length; no collective."""
    if is_shared(loader):
        return loader
    if not isinstance(loader, data.DataLoader):
        return SharedBatches(loader, Share("pad", 0), False)
    earlier = loader.__dict__.get("_amp_prepared")
    if earlier is not None:
        return earlier
    shared, _ = _share_loader(loader, Share("pad", 0))
    shared.__dict__["_amp_whole"] = loader
    return shared


def shared_seed(generator: torch.Generator | None) -> int:
    """A seed equal on all ranks: from the script's own seed, and different for each loader."""
    global _prepared_loaders
    _prepared_loaders += 1
    seed = mix(torch.initial_seed() if generator is None else generator.initial_seed(), _prepared_loaders)
    # Scripts that seed by rank would otherwise get overlapping parts. In turns no rank may wait for another.
    return seed if inside_main_process_first() else int(from_main_process(seed))


def _share_loader(loader: data.DataLoader[Any], share: Share) -> tuple[data.DataLoader[Any], list[Any]]:
    """The loader of this rank's share, and what counts its epochs."""
    if isinstance(loader.dataset, data.IterableDataset):
        index = "sampler" if loader.batch_sampler is None else "batch_sampler"
        counter = EpochCounter(getattr(loader, index), share)
        return copy_with(loader, dataset=SharedIterableDataset(loader.dataset, share), **{index: counter}), [share]
    if not _has_own_batches(loader):
        return copy_with(loader, batch_sampler=SharedSampler(loader.batch_sampler, share)), [share]
    sampler = _share_sampler(loader.sampler, share, loader.batch_size or 1)
    counters = [sampler if isinstance(sampler, ShuffledSampler) else share]
    if loader.batch_sampler is None:
        return copy_with(loader, sampler=sampler), counters
    batches = data.BatchSampler(sampler, loader.batch_size or 1, loader.drop_last)
    return copy_with(loader, sampler=sampler, batch_sampler=batches), counters


def _division(loader: data.DataLoader[Any], share: Share) -> Division | None:
    """How the samples are shared out, where that can be done anew in mid-epoch: not those of a stream."""
    if isinstance(loader.dataset, data.IterableDataset):
        return None
    return Division(share, _sequence, _has_own_batches(loader))


def _sequence(loader: data.DataLoader[Any], start: Mapping[str, Any]) -> Iterator[Any]:
    """What the ranks share in an epoch: as one process draws it, or as several do."""
    source: Any = loader
    if not start["alone"]:
        ((epoch, seed),) = start["counters"]
        source, (counter,) = _share_loader(loader, Share("join", seed, sharded=True))
        counter.epoch, counter.seed = epoch, seed
    return iter(source.sampler if _has_own_batches(loader) else source.batch_sampler)


def _has_own_batches(loader: data.DataLoader[Any]) -> bool:
    """Whether batches are formed by the loader itself or not at all, and not by the script's own sampler."""
    batches = loader.batch_sampler
    if batches is None:
        return True
    return (
        type(batches) is data.BatchSampler
        and batches.sampler is loader.sampler
        and batches.batch_size == loader.batch_size
    )


def _share_sampler(sampler: Any, share: Share, batch_size: int) -> data.Sampler[Any]:
    shuffled = type(sampler) is data.RandomSampler and not sampler.replacement and sampler._num_samples is None
    if not shuffled and type(sampler) is not data.SequentialSampler:
        return SharedSampler(sampler, share, batch_size)
    order = ShuffledSampler(
        sampler.data_source,
        num_replicas=share.world_size,
        rank=share.rank,
        shuffle=shuffled,
        seed=share.seed % 2**62,  # the epoch is added to it
        drop_last=share.uneven == "drop",
    )
    order.padded = share.uneven != "join"
    return order


def copy_with(loader: data.DataLoader[Any], **changes: Any) -> data.DataLoader[Any]:
    """A loader of the same class with the same attributes but for ``changes``.

    Neither the constructor nor ``copy.copy`` can do it: subclasses have constructors of their own, and a
    loader refuses new samplers.
    """
    clone: data.DataLoader[Any] = object.__new__(type(loader))
    clone.__dict__.update(loader.__dict__)
    clone.__dict__.update(changes)
    clone.__dict__["_iterator"] = None
    forget(clone)
    for name, value in loader.__dict__.items():
        if isinstance(value, _BaseDataLoaderIter) and name != "_iterator":
            # A subclass that keeps its iterator over epochs; it reads through the old samplers.
            clone.__dict__[name] = data.DataLoader.__iter__(clone)
    return clone
