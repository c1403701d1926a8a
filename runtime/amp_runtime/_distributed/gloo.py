"""Gloo's threads, and when they need Python no more."""

from __future__ import annotations

import time
from pathlib import Path

import torch.distributed as dist

_TASKS = Path("/proc/self/task")
# A thread that waits for the GIL looks again every 5 ms, so in this time it is seen to have been awake.
_PAUSE = 0.015
_UNSEEN = 0.06
_LONGEST = 5.0


def settle() -> None:
    """Waits until gloo's threads have dropped the tensors of the last exchanges.

    An exchange is complete before its thread has let go of the tensor, for which the thread needs the GIL. In an
    interpreter that is ending, that aborts the process (status -6, "terminate called without an active exception").
    A process group that ends meanwhile waits for its threads and keeps the GIL, so that none of them goes on. This
    is to be called before either. It waits for no other process and takes about 15 ms, nothing without such threads.
    See https://github.com/pytorch/pytorch/pull/179291.
    """
    if not _TASKS.is_dir():
        if dist.is_available() and dist.is_initialized():
            time.sleep(_UNSEEN)
        return
    end = time.monotonic() + _LONGEST
    before = None
    while (now := _threads()) and time.monotonic() < end:
        if now == before and all(state == "S" for state, _ in now.values()):
            return
        before = now
        time.sleep(_PAUSE)  # the others can have the GIL


def _threads() -> dict[str, tuple[str, str]]:
    """The state of each thread that makes exchanges, and how often it has slept."""
    found = {}
    for task in _TASKS.iterdir():
        try:
            if (task / "comm").read_text().strip() != "pt_gloo_runloop":
                continue
            lines = (task / "status").read_text().splitlines()
        except OSError:
            continue  # it has ended
        values = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        found[task.name] = values["State"][:1], values["voluntary_ctxt_switches"]
    return found
