"""Runs of scripts in processes forked off one that has imported torch, which is what takes most of their time.

``Warm.run`` starts the processes of one run and waits for them; ``Warm.launch`` does so as torchrun does.
``warm_parent.py`` beside this file is the process that they are forked off.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PARENT = Path(__file__).with_name("warm_parent.py")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# torchrun looks at its ranks this often, so that others may still say something when one has failed.
LAST_WORDS = 0.1
# What does not end on SIGTERM within this many seconds is killed.
GRACE = 10.0


@dataclass(frozen=True)
class Start:
    """One process to start.

    Attributes:
        argv: what follows ``python``: a script, or ``-m`` and a module, and its arguments.
        environment: all of it. ``PYTHONHASHSEED`` holds, as in a new interpreter; without it, it is 0.
        stdout: a file that output is added to; several processes may share it.
        stderr: the same.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    stdout: Path
    stderr: Path


@dataclass(frozen=True)
class Ended:
    """How the processes of a run ended.

    Attributes:
        statuses: as ``Popen.returncode``: negative for a signal, also for one that was sent because another failed.
        order: their numbers in the order in which they ended.
        pids: their process numbers.
        in_time: false where the time was up; then they were killed.
    """

    statuses: tuple[int, ...]
    order: tuple[int, ...]
    pids: tuple[int, ...]
    in_time: bool

    @property
    def status(self) -> int:
        """That of the launcher: 1 when a process failed."""
        return int(any(self.statuses))


class _Parent:
    """A process that has imported torch with a hash seed, which a process cannot change after it was forked."""

    def __init__(self, hash_seed: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PARENT)],
            env=os.environ | ONE_THREAD | {"PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Unbuffered, so that a line that was not read yet is seen by select.
            bufsize=0,
        )

    @property
    def answers(self) -> Any:
        return self._process.stdout

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        return self.read()

    def read(self) -> Any:
        line = self.answers.readline()
        assert line, f"the process that scripts are forked off ended with status {self._process.wait()}"
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()


class Warm:
    """Makes runs, one after the other."""

    def __init__(self) -> None:
        self._parents: dict[str, _Parent] = {}

    def close(self) -> None:
        """End the processes that scripts are forked off."""
        for parent in self._parents.values():
            parent.close()

    def run(self, starts: Sequence[Start], cwd: Path, *, seconds: float, last_words: float = 0.0) -> Ended:
        """Fork the processes and wait for them; none of them is left when this returns.

        When one fails, the others are ended after ``last_words`` seconds. The memory is not bounded.
        """
        for start in starts:
            for path in (start.stdout, start.stderr):
                path.write_bytes(b"")
        pids: dict[int, int] = {}
        for parent, numbers in self._grouped(starts).items():
            jobs = [_job(starts[number], cwd, seconds) for number in numbers]
            pids |= dict(zip(parent.ask({"run": jobs}), numbers, strict=True))
        waited = _Waited(pids)
        for limit, number in _signals(time.monotonic() + seconds, waited, last_words):
            self._wait(waited, limit)
            if len(waited.statuses) == len(starts):
                break
            waited.send(number)
        ranks = range(len(starts))
        return Ended(
            tuple(waited.statuses[rank] for rank in ranks),
            tuple(waited.statuses),
            tuple(sorted(pids, key=pids.__getitem__)),
            waited.in_time,
        )

    def launch(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        logs: Sequence[tuple[Path, Path]],
        *,
        seconds: float,
    ) -> Ended:
        """What ``torchrun --nproc-per-node RANKS`` does, with a hash seed of its own for each of two ranks.

        There is a rank for each pair of ``logs``; several may share one.
        """
        with self._store() as port:
            starts = [
                Start(tuple(argv), {**environment, **launched(rank, len(logs), port)}, *logs[rank])
                for rank in range(len(logs))
            ]
            return self.run(starts, cwd, seconds=seconds, last_words=LAST_WORDS)

    @contextlib.contextmanager
    def _store(self) -> Iterator[int]:
        """Host the store in which ranks meet, as torchrun's agent does; its port is taken from when it is known."""
        parent = self._parent("0")
        port, pid = parent.ask({"host": True})
        try:
            yield port
        finally:
            parent.ask({"end": pid})

    def _parent(self, hash_seed: str) -> _Parent:
        if hash_seed not in self._parents:
            self._parents[hash_seed] = _Parent(hash_seed)
        return self._parents[hash_seed]

    def _grouped(self, starts: Sequence[Start]) -> dict[_Parent, list[int]]:
        groups: dict[_Parent, list[int]] = {}
        for number, start in enumerate(starts):
            groups.setdefault(self._parent(start.environment.get("PYTHONHASHSEED", "0")), []).append(number)
        return groups

    def _wait(self, waited: _Waited, limit: float) -> None:
        """Note who ends until the limit, or until one has failed that was not noted before."""
        with selectors.DefaultSelector() as selector:
            for parent in self._parents.values():
                selector.register(parent.answers, selectors.EVENT_READ, parent)
            failed = waited.failed
            while len(waited.statuses) < len(waited.pids) and waited.failed == failed:
                ready = selector.select(max(0.0, limit - time.monotonic()))
                if not ready:
                    return
                for key, _ in ready:
                    pid, status = key.data.read()
                    waited.note(pid, status)


class _Waited:
    """Who of a run has ended, and what was done about the others."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        self.pids = pids
        self.statuses: dict[int, int] = {}
        self.failed = False
        self.in_time = True

    def note(self, pid: int, status: int) -> None:
        self.statuses[self.pids[pid]] = status
        self.failed = self.failed or status != 0

    def send(self, number: int | None) -> None:
        """Send a signal to all that are left, and to what they have started."""
        if number is None:
            return
        for pid in [pid for pid, rank in self.pids.items() if rank not in self.statuses]:
            # Each begins with making itself a group, and may not have come to that.
            for end in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    end(pid, number)


def _signals(deadline: float, waited: _Waited, last_words: float) -> Iterator[tuple[float, int | None]]:
    """Until when to wait, and what to send then to those that are left."""
    yield deadline, None
    if waited.failed:
        yield min(deadline, time.monotonic() + last_words), signal.SIGTERM
        yield time.monotonic() + GRACE, signal.SIGKILL
    else:
        waited.in_time = False
        yield deadline, signal.SIGKILL
    while True:
        yield time.monotonic() + GRACE, signal.SIGKILL


def _job(start: Start, cwd: Path, seconds: float) -> dict[str, Any]:
    return {
        "argv": list(start.argv),
        "environment": dict(start.environment),
        "logs": [str(start.stdout), str(start.stderr)],
        "cwd": str(cwd),
        # Should this process end before the others do, then they end themselves.
        "seconds": int(seconds) + 60,
    }


def launched(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun puts into the environment of a rank, and a hash seed, which it leaves to chance."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "ROLE_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "ROLE_WORLD_SIZE": str(ranks),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "PYTHONHASHSEED": str(rank % 2),
    }
