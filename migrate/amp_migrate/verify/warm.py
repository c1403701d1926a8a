"""Processes of runs forked from one that has imported torch, which takes longer than most runs.

``warm_parent.py`` beside this file is what they are forked from, run by the Python of the scripts. Once the original
has run, a branch of it imports what packages that did besides: later runs in one process are forked from the branch.
Those in several processes are not, since a package may read its rank when it is imported. Only Linux finds every
process that came of a forked one, so elsewhere each run starts its interpreters anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amp_migrate.verify.environment import hash_seed
from amp_migrate.verify.processes import Fresh, Process, Rank, Starter

PARENT = Path(__file__).with_name("warm_parent.py")
IMPORTED = ("numpy", "torch", "torch.distributed", "torch._dynamo")
"""The last is imported by the first optimizer: it brings the compiler."""

_PATIENCE = 300.0
_FAREWELL = 5.0
_POLL = 0.02


class UnfitError(Exception):
    """Nothing can be forked here."""


@dataclass
class Forked:
    """One process of a run; it looks like :class:`subprocess.Popen`."""

    parent: _Parent
    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status if it has ended."""
        self.parent.hear()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        end = time.monotonic() + (timeout or 0.0)
        while self.poll() is None:
            if timeout is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("forked", timeout)
            time.sleep(_POLL)
        assert self.returncode is not None
        return self.returncode


class _Parent:
    """A process to fork from, with the hash seed of its environment, which a forked one cannot change."""

    def __init__(self, control: socket.socket) -> None:
        self._socket = control
        self._unread = b""
        self._forked: dict[int, Forked] = {}
        self._answers: list[dict[str, Any]] = []
        self._has_ended = False
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.seconds: float | None = None

    @classmethod
    def started(cls, command: str, environment: Mapping[str, str]) -> _Parent:
        """One in a new interpreter."""
        ours, theirs = socket.socketpair()
        parent = cls(ours)
        with theirs:
            parent._process = subprocess.Popen(
                [command, str(PARENT), str(theirs.fileno())],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        parent.pid = parent._process.pid
        parent._say({"import": IMPORTED})
        return parent

    def branch(self, names: Sequence[str]) -> _Parent:
        """One that is forked from this one, and imports more; whether it can, it says when it is asked to fork.

        Raises:
            UnfitError: this one has ended, or what it has imported forbids it.
        """
        self.ready()
        ours, theirs = socket.socketpair()
        branch = _Parent(ours)
        with theirs:
            self._say({"branch": list(names)}, theirs.fileno())
            answer = self._answer()
        if "branched" not in answer:
            raise UnfitError(answer.get("unfit", "no answer"))
        branch.pid = answer["branched"]
        return branch

    def fork(self, job: Mapping[str, Any]) -> Forked:
        """Fork a process that does the job.

        Raises:
            UnfitError: this one has ended, or what it has imported forbids it.
        """
        self.ready()
        self._say({"start": job})
        answer = self._answer()
        if "started" not in answer:
            raise UnfitError(answer.get("unfit", "no answer"))
        number = answer["started"]
        forked = self._forked[number] = Forked(self, number)
        return forked

    def ready(self) -> float:
        """Wait until everything is imported, and say how long that took it.

        Raises:
            UnfitError: nothing can be forked.
        """
        if self.seconds is None:
            answer = self._answer()
            if "ready" not in answer:
                raise UnfitError(answer.get("unfit", "no answer"))
            self.seconds = answer["ready"]
        return self.seconds

    def hear(self, seconds: float = 0.0) -> None:
        """Take note of what has ended since."""
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(1 << 16)
        except (BlockingIOError, TimeoutError):
            return
        except OSError:
            data = b""
        if not data:
            self._is_gone()
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for message in map(json.loads, lines):
            if "ended" not in message:
                self._answers.append(message)
                continue
            number, status = message["ended"]
            if number in self._forked:
                self._forked.pop(number).returncode = status

    def close(self) -> None:
        """End it, and with it whatever it has forked, but no branch."""
        self._socket.close()
        if self._process is None:
            return
        try:
            self._process.wait(_FAREWELL)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _say(self, request: Mapping[str, Any], *descriptors: int) -> None:
        self._socket.settimeout(_FAREWELL)
        message = json.dumps(request).encode() + b"\n"
        try:
            if descriptors:
                message = message[socket.send_fds(self._socket, [message], descriptors) :]
            self._socket.sendall(message)
        except OSError as error:
            raise UnfitError(str(error)) from error

    def _answer(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while not self._answers:
            left = end - time.monotonic()
            if left < 0 or self._has_ended:
                raise UnfitError("no answer")
            self.hear(min(left, 1.0))
        return self._answers.pop(0)

    def _is_gone(self) -> None:
        for forked in self._forked.values():
            forked.returncode = -9
        self._forked.clear()
        self._has_ended = True
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@dataclass
class Warm:
    """Starts the processes of runs; use it as a context.

    Attributes:
        command: the Python that runs the scripts.
        environment: what every process has in its environment from its start.
        processes: how many there will be in a run at most.
    """

    command: str
    environment: Mapping[str, str]
    processes: int = 1
    _parents: dict[str, _Parent] = field(default_factory=dict, init=False)
    _branch: _Parent | None = field(default=None, init=False)

    def __enter__(self) -> Warm:
        # They import torch while other things are made ready.
        for rank in range(self.processes):
            with contextlib.suppress(OSError, UnfitError):
                self._parent(hash_seed(rank))
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()
        parents, self._parents = self._parents, {}
        for parent in parents.values():
            parent.close()

    def remember(self, names: Sequence[str]) -> None:
        """Fork later runs in one process from a branch that has imported these modules as well."""
        self.forget()
        if names:
            with contextlib.suppress(OSError, UnfitError):
                self._branch = self._parent(hash_seed(0)).branch(names)

    def forget(self) -> bool:
        """Fork from no branch any more; whether there was one."""
        branch, self._branch = self._branch, None
        if branch is not None:
            branch.close()
        return branch is not None

    def start(self, rank: Rank, cwd: Path) -> Process:
        """Start one process of a run.

        Raises:
            UnfitError: it cannot be forked.
        """
        command, *argv = rank.command
        seed = rank.environment.get("PYTHONHASHSEED", hash_seed(0))
        is_launched = "WORLD_SIZE" in rank.environment
        job = {
            "argv": argv,
            "environment": dict(rank.environment),
            "cwd": str(cwd),
            "stdout": str(rank.stdout),
            "stderr": str(rank.stderr),
            # Threads of a process group may stand in the way of the interpreter's end.
            "whole": is_launched,
        }
        assert command == self.command
        if self._branch is not None and not is_launched and seed == hash_seed(0):
            try:
                return self._branch.fork(job)
            except (OSError, UnfitError):
                self.forget()
        try:
            return self._parent(seed).fork(job)
        except OSError as error:
            raise UnfitError(str(error)) from error

    def parents(self) -> set[int]:
        """The processes whose children belong to a run."""
        branches = [self._branch] if self._branch is not None else []
        return {parent.pid for parent in (*self._parents.values(), *branches)}

    def ready(self) -> float:
        """Wait until a process can be forked, and say how long it took to import what all have."""
        try:
            return self._parent(hash_seed(0)).ready()
        except (OSError, UnfitError):
            return 0.0

    def _parent(self, seed: str) -> _Parent:
        if seed not in self._parents:
            self._parents[seed] = _Parent.started(self.command, {**self.environment, "PYTHONHASHSEED": seed})
        return self._parents[seed]


def can_fork() -> bool:
    """Whether processes are forked on this system."""
    return sys.platform.startswith("linux") and hasattr(os, "fork") and os.path.exists("/proc/self/task")


@contextlib.contextmanager
def starter(command: str, environment: Mapping[str, str], processes: int) -> Iterator[Starter]:
    """What starts the processes of a verification on this system."""
    if not can_fork():
        yield Fresh()
        return
    with Warm(command, environment, processes) as warm:
        yield warm
