"""The end of a rank by an error: it really ends, so that the launcher sees it and the others do not wait for minutes.

What a process does at its end may wait for the other ranks. torch 2.4 ends the exchanges of NCCL when a group is
destroyed; later versions first wait for those that were begun (``ProcessGroupNCCL::shutdown``), which the others never
join. So a rank that failed destroys no group, and gives the script's threads and handlers some seconds only.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any

from amp_runtime._noticing import waiting

_PATIENCE = 10.0  # seconds for the script's own handlers
_before: Any = None
_status: int | None = None


def watch_errors() -> None:
    """From here on an error that nothing catches ends the process without waiting for other ranks."""
    global _before
    if _before is None:
        _before, sys.excepthook = sys.excepthook, _tell_and_end


def stop_watching_errors() -> None:
    """Undoes :func:`watch_errors`, except where the script has put a hook of its own in its place."""
    global _before
    if sys.excepthook is _tell_and_end and not has_failed():
        sys.excepthook = _before
    _before = None


def has_failed() -> bool:
    """Whether an error ends this process just now."""
    return _status is not None


def _tell_and_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    global _status
    _before(kind, error, trace)
    if sys.flags.interactive or hasattr(sys, "ps1"):
        return  # the session goes on
    waiting.tell_error(error, trace)
    _status = 130 if issubclass(kind, KeyboardInterrupt) else 1
    timer = threading.Timer(_PATIENCE, _end)
    timer.daemon = True
    timer.start()


def _end() -> None:
    if _status is not None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
                stream.flush()
        os._exit(_status)


# Early, so that it runs after the handlers of the script.
atexit.register(_end)
