"""One job after the other, in the main thread: it alone hears the alarm that bounds the time for a file."""

from __future__ import annotations

import _thread
import gc
import signal
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_COLLECT_EVERY = 50
"""Jobs after which garbage is looked for in the next pause: the linter has told Python not to do it by itself."""
_COLLECT_AT_LAST = 200
"""Jobs after which no pause is waited for; a thousand lines leave about a megabyte each."""


class Worker:
    """Does what other threads submit.

    Attributes:
        interrupted_from_outside: whether somebody pressed Ctrl-C.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._done = 0
        self._busy = False
        self._stopped = False
        self.interrupted_from_outside = False

    def submit(self, work: Callable[[], _Result]) -> Future[_Result]:
        """Have ``work`` done when its turn comes; a job that is cancelled before is passed over."""
        future: Future[_Result] = Future()
        self._jobs.put((future, work))
        return future

    def run(self) -> None:
        """Do the jobs until :meth:`stop`; to be called in the main thread."""
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            # A shell's background job begins so, and :meth:`stop` could not end a job that takes long.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            while (job := self._jobs.get()) is not None:
                self._busy = True
                _do(*job)
                self._busy = False
                self._done += 1
                if self._done >= _COLLECT_EVERY and (self._jobs.empty() or self._done >= _COLLECT_AT_LAST):
                    self._done = 0
                    gc.collect()
        except KeyboardInterrupt:
            # Nobody waits for the result any more.
            self.interrupted_from_outside = not self._stopped

    def stop(self) -> None:
        """End :meth:`run`, also in the middle of a job."""
        self._stopped = True
        self._jobs.put(None)
        if self._busy:
            _thread.interrupt_main()


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
