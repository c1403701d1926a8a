"""One process's share of a sequence that all processes can produce alike.

Every rank takes every ``world_size``-th item, or run of items where these belong together. A rank without an item in
the last round repeats its first one, or the round is dropped, or the rank has one item less. Everything is lazy,
because samplers may be endless.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, Literal

import torch.utils.data as data

from amp_runtime._core.context import context
from amp_runtime._data.seeding import SharedRandomness, mix

Uneven = Literal["pad", "drop", "join"]
CHUNK = 64
"""How many rounds a sampler is asked for at a time."""


class Share:
    """How the items are shared out, as values, so that it reaches a loader's worker processes.

    Attributes:
        rank: this process.
        world_size: the number of processes.
        uneven: ``"pad"``, ``"drop"`` or ``"join"`` for an incomplete last round.
        seed: a number equal on all ranks.
        epoch: how many times the sequence was started; part of the seed.
    """

    def __init__(self, uneven: Uneven, seed: int, sharded: bool = False) -> None:
        self.rank = 0 if sharded else context.rank
        self.world_size = 1 if sharded else context.world_size  # what is this rank's own already is not shared out
        self.uneven = uneven
        self.seed = seed
        self.epoch = 0

    def length(self, whole: int) -> int:
        """The number of items of each rank, of ``whole`` items together; the largest, if they differ."""
        rounds, rest = divmod(whole, self.world_size)
        return rounds + (1 if rest and self.uneven != "drop" else 0)

    def randomness(self, *more: int) -> SharedRandomness:
        """The random numbers of this epoch, the same on all ranks."""
        return SharedRandomness(mix(self.seed, self.epoch, *more))

    def take(
        self, source: Iterable[Any], randomness: AbstractContextManager[None], chunk: int, block: int = 1
    ) -> Iterator[Any]:
        """This rank's items of ``source``, which is read ``chunk`` rounds at a time under ``randomness``.

        ``block`` items in a row go to the same rank, as long as there are as many for every rank.
        """
        chunk = -(-chunk // block) * block
        with randomness:
            iterator = iter(source)
        spare: list[Any] = []
        while True:
            with randomness:
                items = list(itertools.islice(iterator, chunk * self.world_size))
            if not spare and items:
                first = self.rank * block if len(items) >= block * self.world_size else self.rank
                spare = [items[first] if first < len(items) else items[0]]
            rounds, rest = divmod(len(items), self.world_size)
            blocks = rounds // block
            for number in range(self.rank, blocks * self.world_size, self.world_size):
                yield from items[number * block : (number + 1) * block]
            start = blocks * block * self.world_size
            yield from items[start + self.rank : rounds * self.world_size : self.world_size]
            if len(items) < chunk * self.world_size:
                if self.rank < rest and self.uneven != "drop":
                    yield items[rounds * self.world_size + self.rank]
                elif rest and self.uneven == "pad":
                    yield spare[0]
                return
            del items


class Wrapper:
    """Answers for what it stands for: attributes are read and set there, and it counts as one of its class."""

    _source: Any
    _own: frozenset[str] = frozenset({"_source", "_share"})

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        source = self.__dict__.get("_source")
        return type(self) if source is None else source.__class__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_source" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._source, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._own:
            object.__setattr__(self, name, value)
        else:
            setattr(self._source, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._source, name)

    def __reduce__(self) -> Any:
        return _restored, (type(self), self.__dict__)


def _restored(kind: type[Any], state: dict[str, Any]) -> Any:
    """A wrapper out of a pickle, for the worker processes of a loader."""
    wrapper = object.__new__(kind)
    wrapper.__dict__.update(state)
    return wrapper


class ShuffledSampler(data.DistributedSampler[Any]):
    """torch's DistributedSampler with an order of its own for each epoch, without ``set_epoch``.

    It advances its epoch whenever it is iterated over; ``set_epoch`` still chooses the next one. A dataset that has
    grown or shrunk since is shared out as it is now.

    Attributes:
        padded: whether a rank without a sample in the last round gets one from the beginning.
    """

    padded = True

    def __iter__(self) -> Iterator[Any]:
        self._measure()
        order = super().__iter__()
        self.epoch += 1
        if self.padded:
            return order
        whole = len(self.dataset)  # type: ignore[arg-type]
        return itertools.islice(order, len(range(self.rank, whole, self.num_replicas)))

    def __len__(self) -> int:
        self._measure()
        return super().__len__()

    def _measure(self) -> None:
        """Counts the samples anew; torch does it once, when the sampler is made."""
        rounds, rest = divmod(len(self.dataset), self.num_replicas)  # type: ignore[arg-type]
        self.num_samples = rounds + (1 if rest and not self.drop_last else 0)
        self.total_size = self.num_samples * self.num_replicas

    @property
    def data_source(self) -> Any:
        """What it draws from, under the name that the samplers have which it stands for."""
        return self.dataset


class SharedSampler(Wrapper, data.DistributedSampler[Any]):
    """This rank's share of what any sampler or batch sampler draws.

    A sampler may mean its samples for one batch, such as some of each class: ``block`` of them stay together. Libraries
    ask for torch's DistributedSampler by its class and its attributes, so it answers for both.
    """

    _own = Wrapper._own | {"_block"}

    def __init__(self, source: Any, share: Share, block: int = 1) -> None:
        self._source = source
        self._share = share
        self._block = block

    def __iter__(self) -> Iterator[Any]:
        randomness = self._share.randomness()
        self._share.epoch += 1
        return self._share.take(self._source, randomness, CHUNK, self._block)

    def __len__(self) -> int:
        return self._share.length(len(self._source))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in _OF_DISTRIBUTED or "_share" not in self.__dict__:
                raise
            with suppress(TypeError):  # an endless one has no length
                return _OF_DISTRIBUTED[name](self)
            raise

    def set_epoch(self, epoch: int) -> None:
        """Chooses the next epoch, also in what draws, where that has epochs; it goes on counting from there."""
        self._share.epoch = epoch
        of_source = getattr(self._source, "set_epoch", None)
        if of_source is not None:
            of_source(epoch)


_OF_DISTRIBUTED: Mapping[str, Callable[[SharedSampler], Any]] = {
    "dataset": lambda sampler: sampler.data_source,
    "num_replicas": lambda sampler: sampler._share.world_size,
    "rank": lambda sampler: sampler._share.rank,
    "epoch": lambda sampler: sampler._share.epoch,
    "seed": lambda sampler: sampler._share.seed,
    "drop_last": lambda sampler: sampler._share.uneven == "drop",
    "num_samples": len,
    "total_size": lambda sampler: len(sampler) * sampler._share.world_size,
}
"""Attributes of a DistributedSampler, where what draws has none of that name."""


class EpochCounter(Wrapper, data.Sampler[Any]):
    """A sampler that counts the epochs of a loader over an iterable dataset.

    Worker processes get copies of the dataset, made anew for each epoch unless they persist, and cannot count
    themselves. The loader iterates over its sampler before it starts them.
    """

    def __init__(self, source: Any, share: Share) -> None:
        self._source = source
        self._share = share

    def __iter__(self) -> Iterator[Any]:
        self._share.epoch += 1
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)


class SharedIterableDataset(Wrapper, data.IterableDataset[Any]):
    """This rank's share of a stream of samples.

    Every rank reads the whole stream and keeps its part of it.
    """

    def __init__(self, source: Any, share: Share) -> None:
        self._source = source
        self._share = share

    def __iter__(self) -> Iterator[Any]:
        worker = data.get_worker_info()
        randomness = self._share.randomness(0 if worker is None else worker.id + 1)
        self._share.epoch += 1
        return self._share.take(self._source, randomness, 1)

    def __len__(self) -> int:
        return self._share.length(len(self._source))


def can_be_tracked(loader: data.DataLoader[Any]) -> bool:
    """Whether the loader's class iterates as torch's does."""
    own = type(loader)
    return own.__iter__ is data.DataLoader.__iter__ and own._get_iterator is data.DataLoader._get_iterator
