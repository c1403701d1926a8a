"""How long each phase of the work takes, for those who ask why it takes so long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class _Stopwatch:
    """Seconds of each phase; a phase within another does not count as that one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._phases: list[str] = []
        self._since = time.monotonic()

    def enter(self, name: str) -> None:
        self._note()
        self._phases.append(name)

    def leave(self) -> None:
        self._note()
        self._phases.pop()

    def _note(self) -> None:
        now = time.monotonic()
        if self._phases:
            name = self._phases[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


_stopwatch: ContextVar[_Stopwatch | None] = ContextVar("_stopwatch", default=None)


@contextmanager
def measured(name: str) -> Iterator[dict[str, float]]:
    """Yield the seconds of each phase that is entered in the body, by name; ``name`` stands for all that is in none."""
    stopwatch = _Stopwatch()
    token = _stopwatch.set(stopwatch)
    stopwatch.enter(name)
    try:
        yield stopwatch.seconds
    finally:
        stopwatch.leave()
        _stopwatch.reset(token)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Count the body as a phase, where anybody measures."""
    stopwatch = _stopwatch.get()
    if stopwatch is None:
        yield
        return
    stopwatch.enter(name)
    try:
        yield
    finally:
        stopwatch.leave()
