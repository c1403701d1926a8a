"""A bound on the time that one file may take."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Should something swallow the first alarm, the next one follows.
_AGAIN = 0.5


class TookTooLongError(BaseException):
    """The time is up. No :class:`Exception`, lest an ``except Exception`` on the way take it for something else."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`TookTooLongError` in the body after ``seconds`` by the clock; 0 stands for no bound.

    Does nothing where the system has no such alarm, or outside of the main thread, which alone hears it. It is heard
    between two steps of Python: a long call into C ends first.
    """
    if seconds <= 0 or not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def expired(number: int, frame: FrameType | None) -> None:
        raise TookTooLongError

    before = signal.signal(signal.SIGALRM, expired)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
        yield
    except Exception as error:
        if _came_of_the_alarm(error):
            raise TookTooLongError from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _came_of_the_alarm(error: BaseException | None) -> bool:
    """Whether an error came up on the way out of what the alarm broke off: a ``finally`` found it half done."""
    while error is not None and not isinstance(error, TookTooLongError):
        error = error.__context__
    return error is not None
