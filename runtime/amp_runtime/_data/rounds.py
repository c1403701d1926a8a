"""Ranks whose loaders end at different times: they agree at each batch on how to go on."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from amp_runtime._core.context import context
from amp_runtime._core.trees import map_tensors
from amp_runtime._data.shards import Uneven
from amp_runtime._distributed.group import flag_device
from amp_runtime._distributed.objects import broadcast_object
from amp_runtime._distributed.passes import end_passes
from amp_runtime._distributed.shadow import Round, begin_round

_HAS_DATA, _ENDED, _NEVER_HAD = 1, 2, 3
_NOTHING = object()


class Rounds:
    """One epoch in which every rank gets equally many batches. Each fetch is a small collective.

    Args:
        uneven: ``"drop"`` ends for all with the first rank that ends, ``"pad"`` gives a rank its batches again, and
            ``"join"`` a copy of its first one, to shadow the others with; see ``shadow.py``.
        again: begins this rank's batches anew.
    """

    def __init__(self, uneven: Uneven, again: Callable[[], Iterator[Any]]) -> None:
        self._uneven = uneven
        self._again = again
        self._repeated: Iterator[Any] | None = None
        self._kept: Any = _NOTHING
        self._ended = self._over = False

    def next(self, owner: Any, fetch: Callable[[], Any]) -> Any:
        """The next batch.

        Args:
            owner: the iterator that hands it out.
            fetch: gives this rank's own next batch, or raises ``StopIteration``.
        """
        if self._over:
            raise StopIteration
        batch = self._own(fetch)
        states = self._agree(batch is not _NOTHING)
        with_data = states.count(_HAS_DATA)
        if not with_data or (self._uneven == "drop" and with_data < len(states)):
            self._over = True
            begin_round(None)
            raise StopIteration
        if self._uneven == "join":
            return self._joined(batch, states, owner)
        return self._next_repeated() if batch is _NOTHING else batch

    def _own(self, fetch: Callable[[], Any]) -> Any:
        if self._ended:
            return _NOTHING
        try:
            batch = fetch()
        except StopIteration:
            self._ended = True
            return _NOTHING
        if self._kept is _NOTHING:  # a copy, because loops change their batches
            self._kept = copy.deepcopy(batch) if self._uneven == "join" else None
        return batch

    def _agree(self, has_data: bool) -> list[int]:
        """What each rank has."""
        end_passes()
        states = torch.zeros(context.world_size, dtype=torch.int32, device=flag_device())
        states[context.rank] = _HAS_DATA if has_data else _NEVER_HAD if self._kept is _NOTHING else _ENDED
        dist.all_reduce(states)
        agreed: list[int] = states.tolist()
        return agreed

    def _joined(self, batch: Any, states: list[int], owner: Any) -> Any:
        if _NEVER_HAD in states:
            source = states.index(_HAS_DATA)
            shown = map_tensors(torch.Tensor.cpu, batch) if context.rank == source else None
            shown = broadcast_object(shown, source, flag_device())
            if self._kept is _NOTHING:
                self._kept = shown
        with_data = states.count(_HAS_DATA)
        own = batch is not _NOTHING
        begin_round(None if with_data == len(states) else Round(weakref.ref(owner), own, with_data))
        return batch if own else copy.deepcopy(self._kept)

    def _next_repeated(self) -> Any:
        for _ in range(2):
            if self._repeated is None:
                self._repeated = self._again()
            for batch in self._repeated:
                return batch
            self._repeated = None
        raise ValueError(
            f"rank {context.rank} has no batch to repeat with uneven='pad'; allowed for a rank without data: "
            "uneven='join', 'drop'"
        )
