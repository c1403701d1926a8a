"""What runs a function in another thread."""

from __future__ import annotations

THREADS = frozenset({"threading.Thread", "threading.Timer"})
"""Classes whose ``target`` (the function of a timer) runs in a thread of its own."""

POOLS = frozenset(
    {
        "concurrent.futures.ThreadPoolExecutor",
        "concurrent.futures.thread.ThreadPoolExecutor",
        "multiprocessing.pool.ThreadPool",
        "multiprocessing.dummy.Pool",
    }
)
"""Classes whose methods run what they are given in threads."""

HANDING_OVER = frozenset(
    {"apply", "apply_async", "imap", "imap_unordered", "map", "map_async", "starmap", "starmap_async", "submit"}
)
"""Methods of a pool that are given a function first."""
