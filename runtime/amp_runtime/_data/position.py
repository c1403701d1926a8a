"""Where a loader is in its epoch, to go on there after a restart."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
import torch.utils.data as data
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from amp_runtime._core.context import context
from amp_runtime._core.randomness import random_state, set_random_state
from amp_runtime._data.rounds import Rounds
from amp_runtime._data.shards import Uneven
from amp_runtime._data.streams import OwnNumbers, SeedWorkers

_START = ("random", "generators", "counters", "fresh")
_KEYS = frozenset({"epoch", "running", "batches", "length", *_START})


def loader_state(loader: Any) -> dict[str, Any]:
    """How far the loop over a prepared loader is, for a checkpoint.

    It may be asked at any time, also in the loop's body: batches that workers have fetched in advance do not count. It
    is this rank's own, as random states are.

    Args:
        loader: what ``amp.prepare_loader`` returned, in one process or several; or an object with a ``state_dict`` of
            its own, which is asked for it.

    Returns:
        ``epoch``, the number of epochs begun before this one, ``batches``, the number that the loop has received of
        it, and what is needed to draw the same samples again. Numbers, tuples, lists and tensors only, so that
        ``torch.load(weights_only=True)`` reads it. With persistent workers, an epoch that was left by ``break``
        counts as running until the next one begins.

    Raises:
        TypeError: the position of such an object cannot be known.
    """
    if _position(loader) is None and callable(getattr(loader, "state_dict", None)):
        return {"own": loader.state_dict()}
    return _position_of(loader, "loader_state").state()


def load_loader_state(loader: Any, state: Mapping[str, Any], *, replay: bool = False) -> None:
    """Lets the next loop over a prepared loader go on where :func:`loader_state` was asked.

    That loop gets what is left of the saved epoch: nothing, if it was saved in the body of the last batch. Map
    datasets skip what was read without loading it, with any number of workers; iterable datasets are read and thrown
    away. The global random states are not set here: those in force when the loop begins are in force at its first
    batch.

    Random augmentation in worker processes has other random numbers after a restart in mid-epoch, because the workers
    are new; ``replay=True`` reads all batches of the epoch again to bring them back, with as many workers as before.
    Alone, an iterable dataset or a sampler goes on exactly if it draws its random numbers when the epoch begins.

    Args:
        loader: a prepared loader over the same data with the same batch size.
        state: what :func:`loader_state` returned.
        replay: read the skipped batches and throw them away, for map datasets too.

    Raises:
        TypeError: the position of such an object cannot be set.
        ValueError: ``state`` is none of a loader, or is in mid-epoch of a loader with other batches.
    """
    if "own" in state and callable(getattr(loader, "load_state_dict", None)):
        loader.load_state_dict(state["own"])
        return
    position = _position_of(loader, "load_loader_state")
    if not _KEYS.issubset(state):
        raise ValueError(
            f"amp.load_loader_state got a state with the keys {sorted(state)}; allowed: what amp.loader_state returned"
        )
    position.load(state, replay)


def _position(loader: Any) -> Position | None:
    found = getattr(loader, "__dict__", {}).get("_amp_position")
    return found if isinstance(found, Position) else None


def _position_of(loader: Any, function: str) -> Position:
    position = _position(loader)
    if position is not None:
        return position
    own = isinstance(loader, data.DataLoader) and not can_be_tracked(loader)
    reason = "whose class has an iteration of its own, so that its position cannot be known" if own else "not prepared"
    raise TypeError(
        f"amp.{function} got a {type(loader).__name__}, {reason}; allowed: a torch DataLoader that went through "
        "amp.prepare_loader, or an object with state_dict and load_state_dict"
    )


class Position:
    """The position of one loader.

    Args:
        loader: the loader.
        counters: what counts its epochs: objects with ``epoch`` and ``seed``.
        uneven: how ranks that end at different times go on; ``None`` where all end together.
    """

    def __init__(self, loader: Any, counters: Sequence[Any] = (), uneven: Uneven | None = None) -> None:
        self._loader = weakref.ref(loader)
        self._counters = counters
        self.uneven = uneven
        self._begun = 0
        self._start: dict[str, Any] = {}
        self._pass: weakref.ref[Any] | None = None
        self._pending: Mapping[str, Any] | None = None
        self._replay = self._unseeded = False
        self.skipped = 0
        self.finished = True

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loader": self._loader(), "_pass": None, "finished": True}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._loader = weakref.ref(state["_loader"])

    @property
    def loader(self) -> Any:
        """The loader itself."""
        return self._loader()

    def begin(self) -> Iterator[Any]:
        """A new iterator over the loader, of torch's own kind."""
        loader = self.loader
        if loader.num_workers == 0:
            return _TrackedHere(loader, self)
        loader.check_worker_number_rationality()
        return _TrackedWorkers(loader, self)

    def state(self) -> dict[str, Any]:
        """The position as values."""
        if self._pending is not None:
            return dict(self._pending)
        current = None if self._pass is None else self._pass()
        running = current is not None and not self.finished
        boundary = {**self._now(), "random": None, "fresh": not self._has_workers()}
        return {
            "epoch": self._begun - running,
            "running": running,
            "batches": int(current._num_yielded) if current is not None and running else 0,
            "length": _length(self.loader),
            **(_portable(self._start) if running else boundary),
        }

    def load(self, state: Mapping[str, Any], replay: bool) -> None:
        """Prepares the next epoch to be the one of ``state``, from where it stopped."""
        length = _length(self.loader)
        if state["running"] and (state["length"] != length or len(state["counters"]) != len(self._counters)):
            raise ValueError(
                f"amp.load_loader_state got a state in mid-epoch, after {state['batches']} of {state['length']} "
                f"batches, for a loader of {length}; allowed: one with the same data, batch size and processes"
            )
        self._begun = int(state["epoch"])
        self._pending, self._replay = state, replay
        if not state["running"]:
            self._set_generators(state["generators"])
            self._set_counters(state["counters"])

    @contextmanager
    def epoch(self, batches: Any, fresh: bool = True) -> Iterator[None]:
        """Around the beginning of an epoch.

        Args:
            batches: its iterator.
            fresh: whether the iterator is new, so that torch draws a seed for workers when it begins; persistent
                workers only get one in their first epoch.
        """
        pending, self._pending = self._pending, None
        self._pass, self.finished = weakref.ref(batches), False
        self._begun += 1
        self.skipped = 0
        seeded = fresh if pending is None else bool(pending["fresh"])
        self._unseeded = fresh and not seeded
        now = random_state()
        if pending is None or not pending["running"]:
            self._start = {**self._now(), "random": now, "fresh": seeded}
            self._draw_seed(seeded and not fresh)
            yield
            return
        self._start = {name: pending[name] for name in _START}
        self.rewind()
        self._set_generators(self._start["generators"])
        set_random_state(self._start["random"])
        try:
            self._draw_seed(seeded and not fresh)
            self.skipped = int(pending["batches"])
            yield
        finally:
            set_random_state(now)

    def _draw_seed(self, missing: bool) -> None:
        """Draws what torch draws for new workers, where the saved epoch had new ones and this one has not."""
        if missing:
            torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)

    def undraw_seed(self) -> None:
        """Goes back behind the seed that torch has drawn for new workers, where the saved epoch had none."""
        if self._unseeded:
            self._set_generators(self._start["generators"])
            set_random_state(self._start["random"])

    @property
    def reads_through(self) -> bool:
        """Whether what is skipped has to be read."""
        return self._replay or isinstance(getattr(self.loader, "dataset", None), data.IterableDataset)

    def rewind(self) -> None:
        """Takes the counting of a beginning back, before the loader begins a second time."""
        self._set_counters(self._start["counters"])

    def _has_workers(self) -> bool:
        """Whether persistent workers wait for the next epoch."""
        return getattr(self.loader, "_iterator", None) is not None

    def _now(self) -> dict[str, Any]:
        return {
            "generators": [generator.get_state() for generator in self._generators()],
            "counters": [(int(counter.epoch), int(counter.seed)) for counter in self._counters],
        }

    def _set_generators(self, states: Any) -> None:
        for generator, state in zip(self._generators(), states, strict=False):
            generator.set_state(state)

    def _set_counters(self, values: Any) -> None:
        for counter, (epoch, seed) in zip(self._counters, values, strict=False):
            counter.epoch, counter.seed = epoch, seed

    def _generators(self) -> list[torch.Generator]:
        """The loader's own random generators, each once; they go on from the epoch's start by themselves."""
        batches = getattr(self.loader, "batch_sampler", None)
        sampler = getattr(self.loader, "sampler", None)
        holders = (self.loader, sampler, batches, getattr(batches, "sampler", None))
        found = [getattr(holder, "generator", None) for holder in holders]
        return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


class _Skipping:
    """An iterator that leaves out its first items, when it is first asked or told to."""

    def __init__(self, source: Iterator[Any], count: int) -> None:
        self._source = source
        self._left = count

    def skip(self) -> None:
        """Leaves them out now."""
        left, self._left = self._left, 0
        for _ in itertools.islice(self._source, left):
            pass

    def __iter__(self) -> _Skipping:
        return self

    def __next__(self) -> Any:
        if self._left:
            self.skip()
        return next(self._source)


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
        position = self._position
        if position.skipped and not position.reads_through:
            indices = _Skipping(indices, position.skipped)
        self.__dict__["_indices"] = indices

    def _go_on(self) -> None:
        position = self._position
        if self._num_workers == 0:
            position.undraw_seed()
        if position.reads_through:
            with suppress(StopIteration):
                for _ in range(position.skipped):
                    super().__next__()
        elif isinstance(self._sampler_iter, _Skipping):
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


def can_be_tracked(loader: data.DataLoader[Any]) -> bool:
    """Whether the loader's class iterates as torch's does."""
    own = type(loader)
    return own.__iter__ is data.DataLoader.__iter__ and own._get_iterator is data.DataLoader._get_iterator


def track(loader: data.DataLoader[Any], counters: Sequence[Any] = (), uneven: Uneven | None = None) -> None:
    """Lets a loader count; it stays the same object of the same class, and draws the same random numbers."""
    position = Position(loader, counters, uneven)
    loader.__dict__["_amp_position"] = position
    loader.__dict__["_get_iterator"] = position.begin  # DataLoader.__iter__ calls it


def forget(loader: data.DataLoader[Any]) -> None:
    """Undoes :func:`track`."""
    for name in ("_amp_position", "_get_iterator"):
        loader.__dict__.pop(name, None)


def _plain_iterator(position: Position) -> Iterator[Any]:
    loader = position.loader
    kind: Any = _SingleProcessDataLoaderIter if loader.num_workers == 0 else _MultiProcessingDataLoaderIter
    iterator: Iterator[Any] = kind(loader)
    return iterator


def _length(loader: Any) -> int | None:
    if isinstance(getattr(loader, "dataset", None), data.IterableDataset):
        return None  # asking a loader for it has effects of its own
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _portable(start: Mapping[str, Any]) -> dict[str, Any]:
    """The beginning of an epoch as what ``torch.load(weights_only=True)`` accepts, which NumPy's arrays are not."""
    numpy = start["random"]["numpy"]
    if not isinstance(numpy, dict):
        return dict(start)
    if numpy["bit_generator"] != "MT19937":  # of the script's own making
        return {**start, "random": {**start["random"], "numpy": None}}
    keys, position = numpy["state"]["key"].tolist(), int(numpy["state"]["pos"])
    portable = ("MT19937", keys, position, int(numpy["has_gauss"]), float(numpy["gauss"]))
    return {**start, "random": {**start["random"], "numpy": portable}}
