"""Loaders of other libraries, and any iterable of batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from amp_runtime._data.position import Position
from amp_runtime._data.rounds import Rounds
from amp_runtime._data.shards import Share, Wrapper
from amp_runtime._data.streams import OwnNumbers


class SharedBatches(Wrapper):
    """This rank's share of any iterable of batches: a list, a generator, a loader of another library."""

    _own = Wrapper._own | {"_amp_position"}

    def __init__(self, source: Any, share: Share, in_rounds: bool) -> None:
        self._source = source
        self._share = share
        self._amp_position = Position(self, [share], share.uneven if in_rounds else None)

    def __iter__(self) -> Iterator[Any]:
        return _Pass(self, self._amp_position)

    def __len__(self) -> int:
        return self._share.length(len(self._source))

    def begin(self) -> Iterator[Any]:
        """This rank's batches of a new epoch."""
        randomness = self._share.randomness()
        self._share.epoch += 1
        return self._share.take(self._source, randomness, 1)


class _Pass:
    """One epoch."""

    def __init__(self, batches: SharedBatches, position: Position) -> None:
        self._position = position
        with position.epoch(self):
            self._items = batches.begin()
            for _ in itertools.islice(self._items, position.skipped):
                pass
        self._num_yielded = position.skipped
        self._rounds = None if position.uneven is None else Rounds(position.uneven, batches.begin)
        self._own_numbers = OwnNumbers()

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        try:
            return self._own() if self._rounds is None else self._rounds.next(self, self._own)
        except StopIteration:
            self._position.finished = True
            self._own_numbers.end()
            raise

    def _own(self) -> Any:
        batch = next(self._items)
        self._num_yielded += 1
        return batch
