"""State that a module gave for one batch and is given again with the next, as recurrent networks carry it on.

Which rows follow each other is then no longer free. It is told by the memory that an output lies in, in the first steps
and where :mod:`.ways` are followed: what takes no part in training has changed nothing by then.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from .digests import tensors_in
from .record import calling_first, guarded
from .steps import Steps

_STEPS = 12


def watch(steps: Steps) -> None:
    """Follow what modules are given and give, for some steps."""
    if os.environ.get("AMP_VERIFY_WAYS"):
        _Carrying(steps).begin()


class _Carrying:
    """The outputs of each module for the batches before: the memory of each, which is not kept for being known."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self._module = steps.torch.nn.Module
        self._own = self._module.__call__
        self._followed = self._own
        self._given: dict[int, list[tuple[Any, int]]] = {}
        self._told: set[str] = set()

    def begin(self) -> None:
        """Follow every call of a module."""
        self._followed = self._module.__call__ = self._following(self._own)
        self.steps.torch.compile = calling_first(self._end, self.steps.torch.compile)

    def _following(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def followed(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self.steps.record.backwards >= _STEPS:
                self._end()
                return call(module, *args, **kwargs)
            self._look(module, (args, kwargs), sys._getframe(1))
            result = call(module, *args, **kwargs)
            self._keep(module, (args, kwargs), result)
            return result

        return followed

    @guarded
    def _end(self) -> None:
        self._given.clear()
        # Something else may have put its own there meanwhile.
        if self._module.__call__ is self._followed:
            self._module.__call__ = self._own

    @property
    def _batch(self) -> int:
        """Which batch this is; without a loader each backward call ends one."""
        return self.steps.handed_out or self.steps.record.backwards

    @guarded
    def _look(self, module: Any, given: Any, frame: FrameType) -> None:
        earlier = self._given.get(id(module))
        if not earlier or not self.steps.record.active:
            return
        known = {memory.cdata for memory, batch in earlier if batch < self._batch and not memory.expired()}
        if known and not known.isdisjoint(memory.cdata for memory in self._memory(given)):
            site = self.steps.record.sites.of(frame)
            if site not in self._told:
                self._told.add(site)
                self.steps.record.add(carried=site, before=self.steps.record.backwards)

    @guarded
    def _keep(self, module: Any, given: Any, result: Any) -> None:
        if not self.steps.torch.is_grad_enabled():
            return
        # What only goes through is nothing that the module made.
        through = {memory.cdata for memory in self._memory(given)}
        through |= {memory.cdata for memory in self._memory([*module.parameters(), *module.buffers()])}
        made = [memory for memory in self._memory(result) if memory.cdata not in through]
        kept = [(memory, batch) for memory, batch in self._given.get(id(module), ()) if not memory.expired()]
        self._given[id(module)] = kept + [(memory, self._batch) for memory in made]

    def _memory(self, values: Any) -> list[Any]:
        torch = self.steps.torch
        reference: Any = torch.multiprocessing.reductions.StorageWeakRef
        return [
            reference(tensor.untyped_storage())
            for tensor in tensors_in(torch, values)
            if tensor.layout is torch.strided and tensor.numel()
        ]
