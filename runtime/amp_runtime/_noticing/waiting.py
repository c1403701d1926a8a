"""A rank that waits alone, and which line each rank is at.

A thread of each rank looks every few seconds at the line that the script is at, and leaves it in the store of the
group. One that has been at the same line for a minute, without a step, while others are elsewhere, says so with the
lines of all; so does the error of an exchange that another rank did not come to. A rank that an error has ended leaves
that, too: without a launcher on the same machine, the others would wait for an exchange until its time is up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from amp_runtime._noticing.place import line_of_script

_log = logging.getLogger("amp_runtime")
_INTERVAL = 10.0  # seconds
_PATIENCE = 6
"""After so many looks at the same line a rank says that it waits."""


class _Watcher(threading.Thread):
    """Looks at this rank's script.

    Args:
        store: where the ranks leave the lines that they are at.
        rank: this one.
        ranks: how many there are.
    """

    def __init__(self, store: Any, rank: int, ranks: int) -> None:
        super().__init__(name="amp_runtime.waiting", daemon=True)
        self._store, self._rank, self._ranks = store, rank, ranks
        self._ended = threading.Event()
        self._line, self._looks = "", 0
        self._failed = self._other_failed = False

    def end(self) -> None:
        """Ends it, since the script has ended; waits for what it does just now, though not for a store for long."""
        self._ended.set()
        self.join(timeout=1.0)
        if not (self._failed or self.is_alive()):
            with contextlib.suppress(RuntimeError):
                self._store.set(f"line/{self._rank}", "its script has ended")

    def run(self) -> None:
        """What the thread does, until it is ended or the store is gone."""
        with contextlib.suppress(RuntimeError):
            while not self._ended.wait(_INTERVAL):
                self._look()

    def _look(self) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        line = f"{line_of_script(frame)} at step {_steps}"
        del frame  # and with it what its function holds
        self._looks = self._looks + 1 if line == self._line else 0
        self._line = line
        if not self._failed:
            self._store.set(f"line/{self._rank}", line)
        if self._looks == _PATIENCE:
            self._complain()
        if self._store.check(["failed"]):
            self._end_with_the_others()

    def _complain(self) -> None:
        lines = self.lines()
        if any(line != self._line for line in lines) and self._store.add(f"told/{self._line}", 1) == 1:
            _log.warning("rank %d has been here for %g s. %s", self._rank, _PATIENCE * _INTERVAL, self.told(lines))

    def _end_with_the_others(self) -> None:
        """Ends this process one look after another one has failed, if it has not ended by itself."""
        if self._other_failed:
            told = self._store.get("failed").decode()
            _log.error("rank %d ends, since %s; it was at %s", self._rank, told, self._line)
            os._exit(1)
        self._other_failed = True

    def lines(self) -> list[str]:
        """Where each rank was at its last look."""
        keys = [f"line/{rank}" for rank in range(self._ranks)]
        return [self._store.get(key).decode() if self._store.check([key]) else "not known" for key in keys]

    @staticmethod
    def told(lines: list[str]) -> str:
        """The lines for people, equal ones once."""
        ranks: dict[str, list[str]] = {}
        for rank, line in enumerate(lines):
            ranks.setdefault(line, []).append(str(rank))
        places = (f"rank {', '.join(found)}: {line}" for line, found in ranks.items())
        return "The ranks are at: " + "; ".join(places)

    def fail(self, error: BaseException) -> None:
        """Leaves that this rank has failed."""
        self._failed = True
        told = f"failed with {type(error).__name__}: {str(error)[:500]}"
        self._store.set(f"line/{self._rank}", told)
        self._store.set("failed", f"rank {self._rank} {told}")


_watcher: _Watcher | None = None
_steps = 0


def begin(store: Any, rank: int, ranks: int) -> None:
    """Looks from here on.

    Args:
        store: one where nothing else has these names.
        rank: this one.
        ranks: how many there are.
    """
    global _watcher
    _watcher = _Watcher(store, rank, ranks)
    _watcher.start()


def end() -> None:
    """Ends it."""
    global _watcher, _steps
    watcher, _watcher, _steps = _watcher, None, 0
    if watcher is not None:
        watcher.end()


def step_made() -> None:
    """A step shows that the rank does not wait."""
    global _steps
    _steps += 1


def tell_error(error: BaseException, trace: TracebackType | None) -> None:
    """Leaves for the others that this rank has failed; where torch has raised the error, says where they are."""
    watcher = _watcher
    if watcher is None:
        return
    with contextlib.suppress(RuntimeError):
        lines = watcher.lines()
        watcher.fail(error)
        if _is_torchs(trace):
            print(f"amp_runtime: {watcher.told(lines)}", file=sys.stderr, flush=True)


def _is_torchs(trace: TracebackType | None) -> bool:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and Path(torch.__file__).parent in Path(trace.tb_frame.f_code.co_filename).parents
