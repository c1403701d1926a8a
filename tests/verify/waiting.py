"""Waiting for processes that end by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def lives(pid: int) -> bool:
    """Whether a process runs, as far as Linux says."""
    try:
        # Whoever adopts it may not have reaped it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition: Callable[[], object]) -> None:
    """Look again and again until it holds."""
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
