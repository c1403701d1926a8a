"""Starting the processes of one run, with bounds on their time and memory, and ending every one of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from amp_migrate.verify.process_table import Entry, entries, environment_of, share

MARK = "AMP_VERIFY_RUN"
"""Every process of a run has it in its environment, with a value of the run's own."""

_POLL, _LOOK = 0.02, 0.5
# To look at all processes of a busy machine takes a while; that is not to become a share of the time worth mentioning.
_LOOK_SHARE, _LOOK_MOST = 0.01, 3.0
# Once one has failed, the others are given this long to say why they do.
_LAST_WORDS = 3.0
# Ranks that trained together also end together; saving may take one of them a while.
_APART = 60.0
_ROUNDS = 100
# Processes that compute, or read what they compute on, have a processor for more of the time than this.
_IDLE, _SAMPLE = 0.02, 5.0
LONG_IDLE = 15.0
"""Seconds without computing after which processes only wait."""
_PR_SET_CHILD_SUBREAPER = 36

How = Literal["ended", "timeout", "stuck", "memory", "apart"]


@dataclass(frozen=True)
class Rank:
    """One process to start: its command, its environment, and where its output goes."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    stdout: Path
    stderr: Path


@dataclass(frozen=True)
class Outcome:
    """How the processes ended.

    Attributes:
        how: by themselves, or because a bound was reached, or one of them long before the others.
        statuses: their exit statuses, as ``Popen.returncode``; None for those that were ended from here.
        order: the ranks in the order in which they ended.
        processes: their numbers.
        seconds: from start to end.
        idle: for how long at the end none of them computed.
    """

    how: How
    statuses: tuple[int | None, ...]
    order: tuple[int, ...]
    processes: tuple[int, ...]
    seconds: float
    idle: float = 0.0


class Process(Protocol):
    """One that was started, as :class:`subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """Its number."""

    @property
    def returncode(self) -> int | None:
        """Its exit status, if it is known."""

    def poll(self) -> int | None:
        """Look whether it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""


class Starter(Protocol):
    """Starts processes."""

    def start(self, rank: Rank, cwd: Path) -> Process:
        """Start one, as the leader of a session of its own."""

    def parents(self) -> set[int]:
        """Processes that stay, and whose children belong to a run."""

    def ready(self) -> float:
        """Wait until one can be started; the seconds that it took, which no run takes again."""

    def remember(self, names: Sequence[str]) -> None:
        """Let later runs in one process find these modules imported, where that saves them the time."""

    def forget(self) -> bool:
        """Let them import these modules themselves again; whether that is another way than before."""


class Fresh:
    """Starts a new interpreter for each process."""

    def start(self, rank: Rank, cwd: Path) -> Process:
        """Start one."""
        with rank.stdout.open("wb") as stdout, rank.stderr.open("wb") as stderr:
            return subprocess.Popen(
                rank.command,
                cwd=cwd,
                env=rank.environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    def parents(self) -> set[int]:
        """None stays."""
        return set()

    def ready(self) -> float:
        """One always can."""
        return 0.0

    def remember(self, names: Sequence[str]) -> None:
        """A new interpreter remembers nothing."""

    def forget(self) -> bool:
        """It had nothing to forget."""
        return False


@dataclass
class _Group:
    """The processes that were started together, and all that came of them."""

    starter: Starter
    mark: str = field(default_factory=lambda: secrets.token_hex(16))
    started: list[Process] = field(default_factory=list)

    def start(self, rank: Rank, cwd: Path) -> None:
        marked = replace(rank, environment={**rank.environment, MARK: self.mark})
        self.started.append(self.starter.start(marked, cwd))

    def members(self) -> list[int]:
        """All living processes: the started ones, their descendants, their sessions', and those with the mark."""
        table = entries()
        found = self._related(table)
        marked = f"{MARK}={self.mark}".encode()
        found |= {pid for pid in table if pid not in found and marked in environment_of(pid)}
        return sorted(_with_descendants(found, table))

    def _related(self, table: Mapping[int, Entry]) -> set[int]:
        started = {process.pid for process in self.started if process.returncode is None}
        sessions = {process.pid for process in self.started}
        parents = self.starter.parents()
        found = {
            pid
            for pid, entry in table.items()
            if pid in started or entry.session in sessions or (entry.parent in parents and pid not in parents)
        }
        return _with_descendants(found, table)

    def computed(self) -> float:
        """The seconds that the living members have had a processor."""
        table = entries()
        return sum(table[pid].computed for pid in self._related(table))

    def memory(self, bound: int) -> int:
        """The memory of all but those that hide, which are few; shared pages count once where that decides."""
        table = entries()
        members = self._related(table)
        resident = sum(table[pid].resident for pid in members)
        return resident if resident <= bound else sum(map(share, members)) or resident

    def end(self) -> None:
        """Kill and reap whatever is left."""
        killed: set[int] = set()
        for _ in range(_ROUNDS):
            left = set(self.members())
            killed |= left
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for process in self.started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=1)
            if not left and not self._reap(killed):
                return
            time.sleep(_POLL)

    def _reap(self, killed: set[int]) -> bool:
        """Reap those whose parent ended before them, and for whom this process stands in; whether there were any."""
        sessions = {process.pid for process in self.started}
        orphans = [
            pid
            for pid, entry in entries(ended=True).items()
            if entry.parent == os.getpid() and (pid in killed or entry.session in sessions)
        ]
        for pid in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return bool(orphans)


def _with_descendants(found: set[int], table: Mapping[int, Entry]) -> set[int]:
    while True:
        more = {pid for pid, entry in table.items() if entry.parent in found and pid not in found}
        if not more:
            return found
        found |= more


@dataclass
class _Idleness:
    """For how long the processes of a group have not computed, looked at now and then."""

    group: _Group
    looked: float
    since: float | None = None
    _computed: float = 0.0

    def seconds(self, now: float) -> float:
        """Look again if it is time; how long it has been."""
        if now - self.looked >= _SAMPLE:
            computed = self.group.computed()
            # Less than before: one of them has ended.
            is_idle = abs(computed - self._computed) < _IDLE * (now - self.looked) * len(self.group.started)
            self.since = (self.looked if self.since is None else self.since) if is_idle else None
            self._computed, self.looked = computed, now
        return 0.0 if self.since is None else now - self.since


def run_together(
    ranks: Sequence[Rank],
    cwd: Path,
    *,
    timeout: float,
    memory: int,
    is_stuck: Callable[[float], bool] = lambda seconds: False,
    starter: Starter | None = None,
) -> Outcome:
    """Start the processes and wait for them; when this returns or raises, none of them is left.

    Args:
        ranks: what to start.
        cwd: their working directory.
        timeout: seconds for all of it.
        memory: bytes that all their processes may have together.
        is_stuck: called now and then with the seconds that have passed; says whether it goes on no more.
        starter: what starts them; None for new interpreters.

    Raises:
        OSError: one cannot be started.
    """
    group = _Group(starter or Fresh())
    began = time.monotonic()
    order: list[int] = []
    how: How = "ended"
    idle = 0.0
    with _adopting_orphans():
        try:
            for rank in ranks:
                group.start(rank, cwd)
            first_end = failed = began
            next_look = began + _LOOK
            idleness = _Idleness(group, began)
            while len(order) < len(ranks):
                time.sleep(_POLL)
                now = time.monotonic()
                for number, process in enumerate(group.started):
                    if number not in order and process.poll() is not None:
                        first_end = now if not order else first_end
                        failed = now if process.returncode and failed == began else failed
                        order.append(number)
                if len(order) == len(ranks) or (failed > began and now - failed > _LAST_WORDS):
                    break
                stuck = is_stuck(now - began)
                idle = idleness.seconds(now)
                if now - began > timeout:
                    how = "timeout"
                elif stuck and idle > LONG_IDLE:
                    how = "stuck"
                elif order and now - first_end > _APART and idle > LONG_IDLE:
                    how = "apart"
                elif now > next_look:
                    how = "memory" if group.memory(memory) > memory else how
                    took = time.monotonic() - now
                    next_look = now + min(max(_LOOK, took / _LOOK_SHARE), _LOOK_MOST)
                if how != "ended":
                    break
            statuses = tuple(process.poll() for process in group.started)
        finally:
            with _uninterrupted():
                group.end()
    pids = tuple(process.pid for process in group.started)
    return Outcome(how, statuses, tuple(order), pids, time.monotonic() - began, idle)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, so that everything is cleaned up."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    try:
        before = {name: signal.signal(getattr(signal, name), interrupt) for name in names}
    except ValueError:  # outside of the main thread
        yield
        return
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold back a second Ctrl-C until everything has been ended."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Become the parent of processes whose parent has ended, so that they can be reaped (on Linux)."""
    if not sys.platform.startswith("linux"):
        yield
        return
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
