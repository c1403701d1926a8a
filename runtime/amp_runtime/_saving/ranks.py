"""What the ranks tell one another while they save and load."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from amp_runtime._core.context import context
from amp_runtime._distributed.group import from_all_processes, from_main_process, inside_main_process_first

_log = logging.getLogger("amp_runtime")
_PATIENCE = 60.0  # seconds


def require_all_ranks(function: str) -> None:
    """Refuses a block in which the ranks take turns: they would wait for one another for ever.

    Raises:
        RuntimeError: this is such a block.
    """
    if context.distributed and inside_main_process_first():
        raise RuntimeError(f"{function} was called inside amp.main_process_first(); all ranks have to call it together")


def gather_objects(value: Any) -> list[Any]:
    """The picklable ``value`` of every rank, in their order. A collective."""
    if not context.distributed:
        return [value]
    with _complaint("amp.save_checkpoint and amp.load_checkpoint wait for the other ranks"):
        return from_all_processes(value)


def raise_together(problem: BaseException | None) -> None:
    """Raises the main process's ``problem`` on every rank, so that none goes on to wait for it. A collective."""
    if context.distributed:
        # An OSError can be sent whole, and a script may catch it; of others only the text is sure to be picklable.
        whole = problem is None or isinstance(problem, OSError)
        received = from_main_process(problem if whole else RuntimeError(f"on the main process: {problem}"))
        problem = problem or received
    if problem is not None:
        raise problem


@contextmanager
def _complaint(text: str) -> Iterator[None]:
    """Says after a minute why nothing goes on."""
    hint = f"{text}: every rank has to call them, not only the main process"
    timer = threading.Timer(_PATIENCE, _log.warning, (hint,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
