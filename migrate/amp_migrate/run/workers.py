"""Doing many files on several cores.

A pool of its own, because a file may crash or hang its process: each worker has a pipe and is given a run of files that
lie together, and it sends one result a file. So it is known which file a worker died of; that file is reported, and the
rest of the run goes to a new worker.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic

from amp_migrate.run.job import Job, Result

# What a worker may take beyond the bound on a file, which it keeps by itself wherever it can.
_GRACE = 5.0


def run_all(
    paths: Sequence[Path], job: Job[Result], jobs: int, advance: Callable[[Path], None] = lambda path: None
) -> Iterator[Result]:
    """Yield the result of each file, in any order.

    Args:
        paths: the files; those that lie together are best named together.
        job: what is done with them.
        jobs: number of processes; 0 for one a core.
        advance: called for each file.
    """
    count = min(jobs or _cores(), len(paths))
    if count <= 1 or (len(paths) < job.parallel_from and jobs == 0):
        work = job.start()
        for path in paths:
            advance(path)
            yield work(path)
        return
    yield from _Pool(job, count, advance).run(paths)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    todo: deque[Path] = field(default_factory=deque)
    since: float = 0.0


class _Pool(Generic[Result]):
    def __init__(self, job: Job[Result], count: int, advance: Callable[[Path], None]) -> None:
        self.job = job
        self.count = count
        self.advance = advance
        # A forked worker has the rules loaded already; elsewhere than on Linux forking is not safe.
        self.context: BaseContext = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self.workers: list[_Worker] = []

    def run(self, paths: Sequence[Path]) -> Iterator[Result]:
        """Yield the results as they come."""
        length = max(1, min(self.job.longest_run, len(paths) // (4 * self.count)))
        runs = deque(deque(paths[index : index + length]) for index in range(0, len(paths), length))
        if self.context.get_start_method() == "fork":
            self.job.start()
        try:
            for _ in range(self.count):
                self._start(runs)
            while self.workers:
                yield from self._step(runs)
        finally:
            for worker in self.workers:
                worker.process.kill()
                worker.process.join()
                worker.pipe.close()

    def _step(self, runs: deque[deque[Path]]) -> Iterator[Result]:
        """Wait for news of any worker, or for one that has been silent for too long."""
        ready = wait([worker.pipe for worker in self.workers], timeout=self._patience())
        for worker in list(self.workers):
            if worker.pipe in ready:
                try:
                    result: Result = worker.pipe.recv()
                except Exception:
                    # The end of the pipe, or half a message: the process is gone.
                    yield self._lost(worker, runs, "the analysis crashed")
                    continue
                self.advance(worker.todo.popleft())
                worker.since = time.monotonic()
                if not worker.todo:
                    self._give(worker, runs)
                yield result
            elif self._bound and time.monotonic() - worker.since > self._bound:
                yield self._lost(worker, runs, f"analysis took longer than {self.job.timeout:g} s")

    @property
    def _bound(self) -> float:
        """Seconds on the clock after which a worker is given up; 0 for never."""
        return self.job.timeout + _GRACE if self.job.timeout else 0.0

    def _patience(self) -> float | None:
        """Seconds until the next worker may have to be given up."""
        if not self._bound:
            return None
        oldest = min(worker.since for worker in self.workers)
        return max(0.05, oldest + self._bound - time.monotonic())

    def _lost(self, worker: _Worker, runs: deque[deque[Path]], reason: str) -> Result:
        """Give up a worker and the file that it was at; the rest goes to another one."""
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        self.workers.remove(worker)
        path = worker.todo.popleft()
        if worker.todo:
            runs.appendleft(worker.todo)
        self._start(runs)
        self.advance(path)
        return self.job.lost(path, reason)

    def _start(self, runs: deque[deque[Path]]) -> None:
        if not runs:
            return
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_work, args=(theirs, self.job), daemon=True)  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self.workers.append(worker)
        self._give(worker, runs)

    def _give(self, worker: _Worker, runs: deque[deque[Path]]) -> None:
        """Send the next run of files, or the word to stop."""
        if runs:
            worker.todo = runs.popleft()
            worker.since = time.monotonic()
            # Should it have died meanwhile, the end of its pipe is what is heard next.
            with contextlib.suppress(OSError):
                worker.pipe.send(list(worker.todo))
            return
        with contextlib.suppress(OSError):
            worker.pipe.send(None)
        worker.process.join()
        worker.pipe.close()
        self.workers.remove(worker)


def _work(pipe: Connection, job: Job[Any]) -> None:
    """Deal with what comes through the pipe, in a process of its own."""
    # An interrupt is the main process's to deal with.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work = job.start()
    # Once nobody is at the other end of the pipe, there is nothing left to do.
    with contextlib.suppress(EOFError, OSError):
        while (paths := pipe.recv()) is not None:
            for path in paths:
                pipe.send(work(path))
    # Not the ordinary end: a thread of the progress bar may have held the lock of standard error at the fork.
    os._exit(0)
