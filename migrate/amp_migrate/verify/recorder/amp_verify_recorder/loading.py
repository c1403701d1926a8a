"""The batches that loaders are asked for, and batches that take their place."""

from __future__ import annotations

import functools
import json
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from . import imports
from .digests import contents, labels
from .record import guarded
from .samples import Datasets
from .steps import Steps

# Under this name a loader keeps its number, and so do copies that are made of it.
NUMBER = "_amp_verify_number"
_READING = "_amp_verify_reading"


def watch(steps: Steps) -> None:
    """Record every batch of every ``DataLoader``."""
    imports.after("torch.utils.data.dataloader", _Loading(steps).watch)


@dataclass
class _Reading:
    """One iterator over a loader: in which pass it is, and the batches asked for that have not been handed out."""

    loader: int
    epoch: int
    batched: bool
    in_workers: bool
    asked: deque[tuple[int, ...]] = field(default_factory=deque)
    given: int = 0
    length: int = 0
    dataset: Any = None
    size: int = 0


class _Loading:
    """The loaders of this process.

    Numbers are given when loaders are made, which no migration changes; ``batches`` holds, by number and pass, those
    that take the place of the sampler's, and ``lengths``, by number, what ``len`` of such a loader is.

    A version in plain PyTorch may make a loader again to share its data out, and one only to ask how long it is. The
    first has the number of the one before it, and the second gives its number back.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.made = 0
        self.epochs: dict[int, int] = {}
        self.batches: dict[str, list[list[int]]] = {}
        self.lengths: dict[str, int] = {}
        self.stream: Any = ()
        self.datasets = Datasets()
        self.is_leveled = os.environ.get("AMP_VERIFY_NATIVE", "").startswith("leveled")
        self.unread: dict[int, weakref.ref[Any]] = {}
        path = os.environ.get("AMP_VERIFY_BATCHES")
        if path:
            with open(path, encoding="utf-8") as file:
                given = json.load(file)
            self.batches, self.lengths = given["batches"], given["lengths"]

    def watch(self, module: Any) -> None:
        """Follow ``DataLoader`` and its iterators."""
        loader, iterator, self.stream = module.DataLoader, module._BaseDataLoaderIter, module.IterableDataset
        loader.__init__ = self._numbering(loader.__init__)
        loader.__len__ = self._counting(loader.__len__)
        iterator.__init__ = self._beginning(iterator.__init__)
        iterator._reset = self._beginning_again(iterator._reset)
        iterator._next_index = self._asking(iterator._next_index)
        iterator.__next__ = self._handing_out(iterator.__next__)
        iterator.next = iterator.__next__

    def _numbering(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def made(loader: Any, *args: Any, **kwargs: Any) -> None:
            if NUMBER not in loader.__dict__:
                loader.__dict__[NUMBER] = self.made
                self.made += 1
            init(loader, *args, **kwargs)
            self._note(loader)
            if self.is_leveled:
                self._count(loader)

        return made

    @guarded
    def _count(self, loader: Any) -> None:
        """Let a loader have the number of the one that it takes the place of, or give back its own."""
        if hasattr(loader.sampler, "num_replicas"):
            for number, reference in self.unread.items():
                before = reference()
                if before is not None and before is not loader and _is_shared_out(before, loader):
                    del self.unread[number]
                    self.made -= 1
                    loader.__dict__[NUMBER] = number
                    break
        number = loader.__dict__[NUMBER]

        def gone(reference: Any) -> None:
            if self.unread.get(number) is reference:
                del self.unread[number]
                self.made -= number == self.made - 1

        self.unread[number] = weakref.ref(loader, gone)

    @guarded
    def _note(self, loader: Any) -> None:
        self.datasets.note(loader.dataset)

    def _counting(self, length: Callable[[Any], int]) -> Callable[[Any], int]:
        @functools.wraps(length)
        def count(loader: Any) -> int:
            given = self.lengths.get(str(loader.__dict__.get(NUMBER)))
            return length(loader) if given is None else given

        return count

    def _beginning(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def begun(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            self._begin(iterator, loader)
            init(iterator, loader, *args, **kwargs)

        return begun

    def _beginning_again(self, reset: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(reset)
        def begun_again(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            if not first_iter:
                self._begin(iterator, loader)
            reset(iterator, loader, first_iter)

        return begun_again

    @guarded
    def _begin(self, iterator: Any, loader: Any) -> None:
        number = loader.__dict__.get(NUMBER)
        if number is None or not self.steps.record.active:
            return
        self.unread.pop(number, None)
        epoch = self.epochs.get(number, -1) + 1
        self.epochs[number] = epoch
        reading = _Reading(number, epoch, loader.batch_sampler is not None, loader.num_workers > 0)
        iterator.__dict__[_READING] = reading
        # A stream may have no length, and a loader over one remembers that it was asked.
        if reading.batched and not isinstance(loader.dataset, self.stream):
            reading.length = len(loader)
        if not isinstance(loader.dataset, self.stream):
            reading.dataset, reading.size = loader.dataset, len(loader.dataset)

    def _asking(self, next_index: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(next_index)
        def asked(iterator: Any) -> Any:
            reading: _Reading | None = iterator.__dict__.get(_READING)
            if reading is None:
                return next_index(iterator)
            given = self.batches.get(f"{reading.loader}/{reading.epoch}")
            if given is not None and reading.batched:
                if reading.given >= len(given):
                    raise StopIteration
                index: Any = given[reading.given]
                reading.given += 1
            else:
                index = next_index(iterator)
            self._ask(reading, index)
            return index

        return asked

    @guarded
    def _ask(self, reading: _Reading, index: Any) -> None:
        items = list(index) if isinstance(index, (list, tuple)) else [index]
        numbers = [int(item) for item in items if hasattr(item, "__index__")]
        reading.asked.append(tuple(numbers) if len(numbers) == len(items) else ())
        # What a sampler draws is its own affair; what is drawn from here on, the dataset draws.
        self.steps.draws.mark()

    def _handing_out(self, following: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(following)
        def handed_out(iterator: Any) -> Any:
            with self._fetching():
                batch = following(iterator)
                reading: _Reading | None = iterator.__dict__.get(_READING)
                if reading is not None and self.steps.record.active:
                    self._hand_out(reading, batch)
                return batch

        return handed_out

    @contextmanager
    def _fetching(self) -> Iterator[None]:
        for follower in self.steps.followers:
            follower.fetches()
        try:
            yield
        finally:
            for follower in self.steps.followers:
                follower.fetched()

    @guarded
    def _hand_out(self, reading: _Reading, batch: Any) -> None:
        record, draws, torch = self.steps.record, self.steps.draws, self.steps.torch
        # Before anything that may fail.
        drew = draws.moved()
        draws.mark()
        indices = reading.asked.popleft() if reading.asked else ()
        facts: dict[str, Any] = {"loader": reading.loader, "epoch": reading.epoch, "before": record.backwards}
        facts["indices"] = list(indices)
        if reading.length:
            facts["length"], reading.length = reading.length, 0
        if reading.size:
            facts["size"], reading.size = reading.size, 0
        # In a worker it may have, and nobody here knows.
        facts["fetch_random"] = None if reading.in_workers else bool(drew)
        if drew and not reading.in_workers:
            facts["drew"] = drew
        facts["learns"] = torch.is_grad_enabled()
        self.steps.handed_out += torch.is_grad_enabled()
        if indices and reading.dataset is not None:
            data, samples = self.datasets.samples(reading.dataset, indices)
            facts["data"] = data
            if samples != facts["indices"]:
                facts["samples"] = samples
        if digests := contents(torch, batch):
            facts["contents"] = digests
        if numbers := labels(torch, batch):
            facts["labels"] = numbers
        record.add(**facts)


def _is_shared_out(before: Any, loader: Any) -> bool:
    """Whether a loader with a sampler for several processes is another one made again."""
    if before.dataset is not loader.dataset or hasattr(before.sampler, "num_replicas"):
        return False
    alike = ("batch_size", "collate_fn", "drop_last", "num_workers")
    return all(getattr(before, name) == getattr(loader, name) for name in alike)
