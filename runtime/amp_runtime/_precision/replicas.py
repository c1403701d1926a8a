"""The region of a model in the replicas that ``nn.DataParallel`` makes of it.

Each replica runs in a thread of its own. torch tells the thread whether autocast is on, and nothing else: its dtype
would be float16 there, without a loss scale where the region is bfloat16, and no mode would cast.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from amp_runtime._core.context import context
from amp_runtime._core.hooks import Hook, has_hook
from amp_runtime._precision import policy
from amp_runtime._precision.autocast import autocast
from amp_runtime._precision.cast_tables import LIKE_CUDA


def watch_replicas(model: nn.Module) -> None:
    """Has replicas of ``model``, and of its parts that are spread now, run in the region that calls them.

    Where the wrapper is put around the model later, the region is that of ``amp.init``. A second time it changes
    nothing.
    """
    if context.distributed or not _has_several_devices():
        return
    if not isinstance(model, nn.DataParallel):
        _watch(model)
    for part in model.modules():
        if isinstance(part, nn.DataParallel) and not has_hook(part._forward_pre_hooks, _tell):
            _watch(part.module)
            part.register_forward_pre_hook(Hook(_tell))
            part.register_forward_hook(Hook(_forget))


def _has_several_devices() -> bool:
    """Whether there are several devices of the kind that trains, or that a model on the CPU may be moved to later."""
    return any(_device_count(kind) > 1 for kind in {context.device_type(), *LIKE_CUDA})


def _device_count(kind: str) -> int:
    count = getattr(getattr(torch, kind, None), "device_count", None)
    return count() if count is not None else 0


_thread = threading.local()


class _Told:
    """The region of the thread that makes it, to be entered in another one."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.dtype = torch.get_autocast_dtype(kind)
        self.mode = policy.current()


class _Again:
    """A told region, in this thread."""

    def __init__(self, told: _Told) -> None:
        self._autocast = torch.autocast(told.kind, told.dtype)
        self._mode = told.mode
        self._casts: policy.Region | None = None

    def __enter__(self) -> None:
        self._autocast.__enter__()  # type: ignore[no-untyped-call]
        self._casts = None if self._mode is None else policy.resume(self._mode)

    def __exit__(self, *error: Any) -> None:
        if self._casts is not None:
            policy.end(self._casts)
        self._autocast.__exit__(*error)


class _Entering(Hook):
    """A forward pre-hook, which replicas share with their model.

    Attributes:
        told: the region of the call that goes on; None where the wrapper is not known.
    """

    def __init__(self) -> None:
        super().__init__(self._enter)
        self.told: _Told | None = None

    def _enter(self, module: nn.Module, args: Any) -> None:
        # A replica that is alone runs in the calling thread, which has the region already.
        if not getattr(module, "_is_replica", False) or threading.current_thread() is threading.main_thread():
            return
        if not policy.casting() or not torch.is_autocast_enabled(context.device_type()):
            return
        region = autocast() if self.told is None else _Again(self.told)
        region.__enter__()
        # The thread ends with the replica. So nothing is left to undo where the forward pass raises.
        _thread.region = region


def _leave(module: nn.Module, args: Any, output: Any) -> None:
    """A forward hook: ends what the pre-hook began."""
    if getattr(module, "_is_replica", False):
        region = getattr(_thread, "region", None)
        if region is not None:
            _thread.region = None
            region.__exit__(None, None, None)


def _watch(model: nn.Module) -> None:
    if _entering(model) is None:
        model.register_forward_pre_hook(_Entering())
        model.register_forward_hook(Hook(_leave))


def _entering(model: nn.Module) -> _Entering | None:
    return next((hook for hook in model._forward_pre_hooks.values() if isinstance(hook, _Entering)), None)


def _tell(wrapper: nn.DataParallel[Any], args: Any) -> None:
    """A forward pre-hook of the wrapper, in the calling thread."""
    entering = _entering(wrapper.module)
    kind = context.device_type()
    if entering is not None:
        entering.told = _Told(kind) if torch.is_autocast_enabled(kind) else None


def _forget(wrapper: nn.DataParallel[Any], args: Any, output: Any) -> None:
    """A forward hook of the wrapper: another one may call the same model."""
    entering = _entering(wrapper.module)
    if entering is not None:
        entering.told = None
