"""A bound on the time that one file may take."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# A busy machine gives each process less, so the clock on the wall is let run on for so many times the bound.
PATIENCE = 6.0
# Should something swallow the first alarm, the next one follows.
_AGAIN = 0.5


class TookTooLongError(BaseException):
    """The time is up. No :class:`Exception`, lest an ``except Exception`` on the way take it for something else."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`TookTooLongError` in the body after ``seconds`` of the processor's time; 0 stands for no bound.

    Does nothing where the system has no such alarm, or outside of the main thread, which alone hears it.
    """
    if seconds <= 0 or not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def expired(number: int, frame: FrameType | None) -> None:
        raise TookTooLongError

    alarms = ((signal.ITIMER_PROF, signal.SIGPROF, seconds), (signal.ITIMER_REAL, signal.SIGALRM, PATIENCE * seconds))
    before = [signal.signal(number, expired) for _, number, _ in alarms]
    try:
        for timer, _, bound in alarms:
            signal.setitimer(timer, bound, _AGAIN)
        yield
    finally:
        for timer, _, _ in alarms:
            signal.setitimer(timer, 0)
        for (_, number, _), handler in zip(alarms, before, strict=True):
            signal.signal(number, handler)
