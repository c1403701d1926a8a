"""What to do about a loop that waits for its batches."""

from __future__ import annotations

import os
from typing import Any

import torch

from amp_runtime._distributed.launch import processes_of_this_machine
from amp_runtime._timing.stats import Window

WAITING = 0.1
"""The part of the time spent waiting for batches above which advice is given: less is not worth a change."""


def advice(window: Window, loader: Any) -> list[str]:
    """What is worth a try, the likeliest first; empty where the loop hardly waits.

    Each is one sentence that names arguments of ``torch.utils.data.DataLoader``; nothing is advised that the loader
    has already.

    Args:
        window: the steps to judge.
        loader: what the batches come from, ``None`` if it is not known.

    Source:
        https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#enable-asynchronous-data-loading-and-augmentation
    """
    whole = window.batch.total
    if whole <= 0 or window.reader.total / whole < WAITING:
        return []
    workers = getattr(loader, "num_workers", None)
    if not isinstance(workers, int):
        return [
            "where one process makes the batches between the steps, have others make them ahead, as "
            "torch.utils.data.DataLoader(dataset, num_workers=...) does"
        ]
    found = _about_workers(workers)
    if workers and not getattr(loader, "persistent_workers", False) and _waits_at_starts(window):
        # The likeliest by far: the rest of the pass does not wait.
        found.insert(
            0, "most of the waiting is for the first batch of a pass: give the DataLoader persistent_workers=True"
        )
    if torch.cuda.is_available() and not getattr(loader, "pin_memory", False):
        found.append("copies to the GPU wait for pageable memory: pin_memory=True, and .to(device, non_blocking=True)")
    return found


def _about_workers(workers: int) -> list[str]:
    processes = processes_of_this_machine()
    cores = max(1, _usable_cores() // processes)
    shared = f", shared by {processes} processes" if processes > 1 else ""
    if not workers:
        return [
            f"batches are made between the steps: give the DataLoader num_workers={min(cores, 8)} "
            f"(this machine has {_usable_cores()} cores{shared})"
        ]
    if workers < cores:
        return [
            f"{workers} of {cores} cores read{shared}: raise num_workers as long as the reader ratio falls, and "
            "prefetch_factor where batches take very different times"
        ]
    return [
        f"{workers} workers keep every core busy already: make a sample cheaper (smaller files, decoded and resized "
        "once and kept, transforms on the GPU), or read from a faster disk"
    ]


def _usable_cores() -> int:
    """Those that this process may use, which containers and job schedulers limit."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable is not None else os.cpu_count() or 1


def _waits_at_starts(window: Window) -> bool:
    return window.starts.total > 0.5 * window.reader.total
