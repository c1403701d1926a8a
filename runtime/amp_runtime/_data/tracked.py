"""torch's iterators over a loader, so that their position is known and can be set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch.utils.data as data
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from amp_runtime._core.context import context
from amp_runtime._data.division import Division, Skipping
from amp_runtime._data.position import Position
from amp_runtime._data.rounds import Rounds
from amp_runtime._data.shards import Uneven
from amp_runtime._data.streams import OwnNumbers, SeedWorkers


class _Tracked(_BaseDataLoaderIter):
    """What torch's iterators over a loader have more, so that their position is known and can be set."""

    _position: Position
    _rounds: Rounds | None
    _own_numbers: OwnNumbers

    def __init__(self, loader: data.DataLoader[Any], position: Position) -> None:
        self._position = position
        with position.epoch(self):
            super().__init__(loader)
            self._go_on()
        self._own_numbers = OwnNumbers()

    def _reset(self, loader: data.DataLoader[Any], first_iter: bool = False) -> None:
        if first_iter:  # torch has begun the samplers once already
            self._position.rewind()
            self._position.undraw_seed()
            super()._reset(loader, first_iter)
            return
        self._own_numbers.end()
        with self._position.epoch(self, fresh=False):
            super()._reset(loader, first_iter)
            self._go_on()
        self._own_numbers = OwnNumbers()

    @property
    def _sampler_iter(self) -> Any:
        return self.__dict__["_indices"]

    @_sampler_iter.setter
    def _sampler_iter(self, indices: Any) -> None:
        self.__dict__["_indices"] = self._position.indices(indices)

    def _go_on(self) -> None:
        position = self._position
        if self._num_workers == 0:
            position.undraw_seed()
        if position.reads_through:
            with suppress(StopIteration):
                for _ in range(position.skipped):
                    super().__next__()
        elif isinstance(self._sampler_iter, Skipping):
            self._sampler_iter.skip()
        self._num_yielded = position.skipped
        self._rounds = None if position.uneven is None else Rounds(position.uneven, partial(_plain_iterator, position))

    def __next__(self) -> Any:
        try:
            return super().__next__() if self._rounds is None else self._rounds.next(self, super().__next__)
        except StopIteration:
            self._position.finished = True
            self._own_numbers.end()
            raise


class _TrackedHere(_Tracked, _SingleProcessDataLoaderIter):
    """torch's iterator that loads in this process."""


class _TrackedWorkers(_Tracked, _MultiProcessingDataLoaderIter):
    """torch's iterator over worker processes."""

    @property
    def _worker_init_fn(self) -> Any:
        return self.__dict__["_init_worker"]

    @_worker_init_fn.setter
    def _worker_init_fn(self, init: Any) -> None:
        self.__dict__["_init_worker"] = SeedWorkers(init) if context.distributed else init


def track(
    loader: data.DataLoader[Any],
    counters: Sequence[Any] = (),
    uneven: Uneven | None = None,
    division: Division | None = None,
) -> None:
    """Lets a loader count; it stays the same object of the same class, and draws the same random numbers."""
    position = Position(loader, counters, uneven, division)
    loader.__dict__["_amp_position"] = position
    loader.__dict__["_get_iterator"] = partial(_begin, position)  # DataLoader.__iter__ calls it


def forget(loader: data.DataLoader[Any]) -> None:
    """Undoes :func:`track`."""
    for name in ("_amp_position", "_get_iterator"):
        loader.__dict__.pop(name, None)


def _begin(position: Position) -> Iterator[Any]:
    """A new iterator over the loader, of torch's own kind."""
    loader = position.loader
    if loader.num_workers == 0:
        return _TrackedHere(loader, position)
    loader.check_worker_number_rationality()
    return _TrackedWorkers(loader, position)


def _plain_iterator(position: Position) -> Iterator[Any]:
    loader = position.loader
    kind: Any = _SingleProcessDataLoaderIter if loader.num_workers == 0 else _MultiProcessingDataLoaderIter
    iterator: Iterator[Any] = kind(loader)
    return iterator
