"""Loaders begin each epoch at its beginning."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Position:
    """What the iterators over a loader share.

    Attributes:
        uneven: how ranks end that have different amounts of data; ``None`` if they do not agree on it.
        skipped: how many batches are left out.
        reads_through: whether they are read.
        finished: whether the epoch is over.
    """

    skipped = 0
    reads_through = False

    def __init__(self, loader: Any, counters: Sequence[Any] = (), uneven: Any = None, division: Any = None) -> None:
        self._loader = weakref.ref(loader)
        self._counters = counters
        self._start: list[int] = []
        self.uneven = uneven
        self.finished = True

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loader": self._loader()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._loader = weakref.ref(state["_loader"])

    @property
    def loader(self) -> Any:
        """The loader itself."""
        return self._loader()

    @contextmanager
    def epoch(self, batches: Any, fresh: bool = True) -> Iterator[None]:
        """Around the beginning of an epoch."""
        self.finished = False
        self._start = [counter.epoch for counter in self._counters]
        yield

    def rewind(self) -> None:
        """Takes the counting of a beginning back, before the loader begins a second time."""
        for counter, epoch in zip(self._counters, self._start, strict=True):
            counter.epoch = epoch

    def undraw_seed(self) -> None:
        """Nothing was drawn that another run did not draw."""

    def indices(self, own: Iterator[Any]) -> Iterator[Any]:
        """What the batches to come are made of."""
        return own
