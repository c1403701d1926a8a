"""Processes that part, without the deadlock that torch may come to on a CPU.

``destroy_process_group`` waits for the threads of Gloo and keeps the interpreter's lock meanwhile. One of them that is
about to let go a tensor of Python's waits for that lock: neither goes on. On a busy machine that happens now and then,
to any script. Given a moment without the lock, the threads are done.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from . import imports
from .steps import Steps

_MOMENT = 0.25
_sleep = time.sleep


def watch(steps: Steps) -> None:
    """Follow the end of process groups."""
    imports.after("torch.distributed.distributed_c10d", functools.partial(_watch_groups, steps.torch))


def _watch_groups(torch: Any, module: Any) -> None:
    destroy = module.destroy_process_group
    module.destroy_process_group = changed = _after_a_moment(destroy)
    distributed: Any = getattr(torch, "distributed", None)
    if getattr(distributed, "destroy_process_group", None) is destroy:
        distributed.destroy_process_group = changed


def _after_a_moment(destroy: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(destroy)
    def destroyed(*args: Any, **kwargs: Any) -> Any:
        _sleep(_MOMENT)
        return destroy(*args, **kwargs)

    return destroyed
