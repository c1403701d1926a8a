"""What is left of an epoch, shared out among another number of processes than those that began it.

The ranks share one sequence of indices, or of batches where the script has a batch sampler. They take turns, so what
all have had after equally many batches is its beginning. Whatever number of processes goes on, it makes the sequence
again, leaves the beginning out and shares out the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch.utils.data as data

from amp_runtime._data.shards import CHUNK, Share

Start = Mapping[str, Any]


class Division:
    """How ``prepare_loader`` shares out the samples of a map dataset; alone, all of them.

    Args:
        share: this rank's.
        sequence: gives what all ranks share in the epoch that begins as saved: indices where the loader makes batches
            of a sampler's, else what its batch sampler gives.
        of_indices: whether they are indices.
    """

    def __init__(self, share: Share, sequence: Callable[[Any, Start], Iterator[Any]], of_indices: bool) -> None:
        self._share = share
        self._sequence = sequence
        self._of_indices = of_indices

    @property
    def ranks(self) -> int:
        """How many share it."""
        return self._share.world_size

    def batch_size(self, loader: Any) -> int:
        """How many items of the sequence make a batch."""
        return (loader.batch_size or 1) if self._of_indices else 1

    def size(self, loader: Any) -> int | None:
        """How many items the sequence has."""
        source = whole(loader)
        try:
            return len(source.sampler if self._of_indices else source.batch_sampler)
        except (TypeError, NotImplementedError):
            return None

    def rest(self, loader: Any, start: Start, skipped: int) -> Skipping:
        """This rank's share of what is left of an epoch, as the loader's own sampler would give it.

        Args:
            loader: the loader.
            start: how the epoch began, and how many items were ``taken`` by other shares.
            skipped: how many of its own batches the rank has had.
        """
        left = Skipping(self._sequence(whole(loader), start), start["taken"])
        together = getattr(loader.sampler, "_block", 1) if self._of_indices else 1
        own = self._share.take(left, nullcontext(), CHUNK, together)
        if self._of_indices and loader.batch_sampler is not None:
            own = iter(data.BatchSampler(_Once(own), loader.batch_size, loader.drop_last))
        return Skipping(own, skipped, left)


class Skipping:
    """An iterator that leaves out its first items, when it is first asked or told to.

    A sampler draws its random numbers then, and torch has drawn the workers' seed before.

    Args:
        source: the iterator.
        count: how many it leaves out.
        inner: another one, on which ``source`` rests.
    """

    def __init__(self, source: Iterator[Any], count: int, inner: Skipping | None = None) -> None:
        self._source = source
        self._left = count
        self._inner = inner

    def skip(self) -> None:
        """Leaves them out now."""
        if self._inner is not None:
            self._inner.skip()
        left, self._left = self._left, 0
        for _ in itertools.islice(self._source, left):
            pass

    def __iter__(self) -> Skipping:
        return self

    def __next__(self) -> Any:
        if self._left:
            self.skip()
        return next(self._source)


class _Once(data.Sampler[Any]):
    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return self._items


def whole(loader: Any) -> Any:
    """The script's own loader of which this one is a share."""
    return loader.__dict__.get("_amp_whole", loader)
