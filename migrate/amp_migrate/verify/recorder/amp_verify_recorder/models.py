"""Wrappers around models that matter to several processes."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from . import imports
from .record import guarded
from .steps import Steps


def watch(steps: Steps) -> None:
    """Note which wrappers the script puts around its models, and in which order."""
    seen = _Wrappers(steps.events)
    parallel = steps.torch.nn.DataParallel
    parallel.__init__ = _preceded(parallel.__init__, lambda *_: seen.note("data_parallel"))
    sync_bn = steps.torch.nn.SyncBatchNorm
    # Bound to the class already; it calls itself for the parts of a model.
    sync_bn.convert_sync_batchnorm = staticmethod(_preceded(sync_bn.convert_sync_batchnorm, seen.converting))
    imports.after("torch.nn.parallel.distributed", seen.watch_ddp)
    imports.after("amp_runtime._distributed.batchnorm", seen.watch_runtime)
    imports.after("amp_runtime._distributed.averaging", seen.watch_averaging)


class _Wrappers:
    def __init__(self, events: set[str]) -> None:
        self.events = events
        self._wrapped: weakref.WeakSet[Any] = weakref.WeakSet()

    def note(self, event: str) -> None:
        """Something was seen."""
        self.events.add(event)

    def watch_ddp(self, module: Any) -> None:
        """Follow torch's ``DistributedDataParallel``."""
        ddp = module.DistributedDataParallel
        ddp.__init__ = _preceded(ddp.__init__, self._wrapping)

    def watch_runtime(self, module: Any) -> None:
        """Follow the runtime's SyncBN."""
        module.synchronise_batch_norm = _preceded(module.synchronise_batch_norm, self.converting)

    def watch_averaging(self, module: Any) -> None:
        """Follow the runtime's way to average gradients when the optimizer steps."""
        module.delay = _preceded(module.delay, lambda *_: self.note("averaged_at_step"))

    def _wrapping(self, wrapper: Any, model: Any, *_: Any) -> None:
        self.note("ddp")
        for part in model.modules():
            self._wrapped.add(part)

    def converting(self, model: Any, *_: Any) -> None:
        """The batch norms of a model are about to become synchronised ones."""
        self.note("sync_bn")
        if any(part in self._wrapped for part in model.modules()):
            self.note("sync_bn_after_ddp")


def _preceded(function: Callable[..., Any], look: Callable[..., None]) -> Callable[..., Any]:
    """``function``, whose arguments are looked at first."""
    look = guarded(look)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        look(*args, *kwargs.values())
        return function(*args, **kwargs)

    return call
