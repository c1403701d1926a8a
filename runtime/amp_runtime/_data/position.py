"""Where a loader is in its epoch, to go on there after a restart."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.data as data

from amp_runtime._core.context import context
from amp_runtime._core.randomness import random_state, set_random_state
from amp_runtime._data.division import Division, Skipping, whole
from amp_runtime._data.shards import Uneven, can_be_tracked

_START = ("random", "generators", "counters", "fresh", "alone", "taken")
_KEYS = frozenset({"epoch", "running", "batches", "length", "random", "generators", "counters", "fresh"})


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

    The batch size and the number of processes may differ, for map datasets that ``amp.prepare_loader`` shares out: what
    all ranks have read is left out, and the rest shared out anew, with the state of rank 0 on every rank. Iterable
    datasets, other iterables, loaders that the script shares out itself and ``replay`` need as many processes as
    before, in mid-epoch. A sampler is asked again, so it has to draw its random numbers when the epoch begins.

    Random augmentation in worker processes has other random numbers after a restart in mid-epoch, because the workers
    are new; ``replay=True`` reads all batches of the epoch again to bring them back, with as many workers as before.
    Alone, an iterable dataset or a sampler goes on exactly if it draws its random numbers when the epoch begins.

    Args:
        loader: a prepared loader over the same data.
        state: what :func:`loader_state` returned.
        replay: read the skipped batches and throw them away, for map datasets too.

    Raises:
        TypeError: the position of such an object cannot be set.
        ValueError: ``state`` is none of a loader, or is in mid-epoch of a loader with other data or shares.
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
        division: how its samples are shared out, where another number of processes can go on in mid-epoch.
    """

    def __init__(
        self,
        loader: Any,
        counters: Sequence[Any] = (),
        uneven: Uneven | None = None,
        division: Division | None = None,
    ) -> None:
        self._loader = weakref.ref(loader)
        self._counters = counters
        self.uneven = uneven
        self._division = division
        self._begun = 0
        self._start: dict[str, Any] = {}
        self._pass: weakref.ref[Any] | None = None
        self._pending: dict[str, Any] | None = None
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

    def state(self) -> dict[str, Any]:
        """The position as values."""
        if self._pending is not None:
            return dict(self._pending)
        current = None if self._pass is None else self._pass()
        running = current is not None and not self.finished
        boundary = {**self._now(), "random": None, "fresh": not self._has_workers()}
        ranks, items = self._shares()
        return {
            "epoch": self._begun - running,
            "running": running,
            "batches": int(current._num_yielded) if current is not None and running else 0,
            "length": _length(self.loader),
            "ranks": ranks,
            "items": items,
            "size": None if self._division is None else self._division.size(self.loader),
            **(_portable(self._start) if running else boundary),
        }

    def _shares(self) -> tuple[int, int | None]:
        """The number of processes, and how many samples of the epoch's common order make a batch of one."""
        return context.world_size, None if self._division is None else self._division.batch_size(self.loader)

    def load(self, state: Mapping[str, Any], replay: bool) -> None:
        """Prepares the next epoch to be the one of ``state``, from where it stopped."""
        self._begun = int(state["epoch"])
        counters = state["counters"] or [(self._begun, int(counter.seed)) for counter in self._counters]
        new_names = {"alone": not state["counters"], "taken": 0}  # of files that earlier versions saved
        self._pending, self._replay = {**new_names, **state, "counters": counters}, replay
        if state["running"]:
            self._pending.update(self._shared_anew(self._pending, replay))
        if not self._pending["running"]:
            self._set_generators(state["generators"])
            self._set_counters(counters)

    def _shared_anew(self, state: Mapping[str, Any], replay: bool) -> dict[str, Any]:
        """What changes in a state in mid-epoch if other shares of the samples made it.

        Raises:
            ValueError: it is of other data, or what is left cannot be shared out anew.
        """
        ranks, items = self._shares()
        length = _length(self.loader)
        there = state.get("ranks", ranks), state.get("items", items)
        can_share = None not in (items, there[1]) and not replay
        if (ranks, items) == there and state["length"] == length:
            return {}
        if not can_share or self._division is None or state["size"] != self._division.size(self.loader):
            also = "" if can_share else ", batch size and number of processes" + (" with replay=True" if replay else "")
            raise ValueError(
                f"amp.load_loader_state got a state in mid-epoch, after {state['batches']} of {state['length']} "
                f"batches on {there[0]} process(es), for a loader of {length} on {ranks}; allowed: one with the same "
                f"data{also}"
            )
        taken = state["taken"] + state["batches"] * there[0] * there[1]
        return {"taken": taken, "batches": 0, "running": taken > 0}

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

    def indices(self, own: Iterator[Any]) -> Iterator[Any]:
        """What the batches to come are made of: ``own`` of the loader's sampler, or what other shares have left."""
        if self._division is not None and self._start["taken"]:
            for counter in self._counters:
                counter.epoch += 1  # as the sampler does
            return self._division.rest(self.loader, self._start, self.skipped)
        return Skipping(own, self.skipped) if self.skipped and not self.reads_through else own

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
            "alone": self._division is None or self._division.ranks == 1,
            "taken": 0,
        }

    def _set_generators(self, states: Any) -> None:
        for generator, state in zip(self._generators(), states, strict=False):
            generator.set_state(state)

    def _set_counters(self, values: Any) -> None:
        for counter, (epoch, seed) in zip(self._counters, values, strict=False):
            counter.epoch, counter.seed = epoch, seed

    def _generators(self) -> list[torch.Generator]:
        """The loader's own random generators, each once; they go on from the epoch's start by themselves."""
        loader = whole(self.loader)
        batches = getattr(loader, "batch_sampler", None)
        holders = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
        found = [getattr(holder, "generator", None) for holder in holders]
        return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


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
