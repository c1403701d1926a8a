"""What the system knows of its processes, and of its memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """What the system says of a process.

    Attributes:
        parent: who started it, or stands in for that one.
        session: the number of the process that opened it.
        resident: bytes of memory.
        ended: whether it only waits to be reaped.
        computed: seconds that it has had a processor.
    """

    parent: int
    session: int
    resident: int
    ended: bool
    computed: float


def entries(*, ended: bool = False) -> dict[int, Entry]:
    """The living processes that this one may see; or those that have ended, and wait to be reaped."""
    if os.path.exists("/proc/self/stat"):
        read = ((pid, _entry(pid)) for pid in map(int, filter(str.isdigit, os.listdir("/proc"))))
        found = {pid: entry for pid, entry in read if entry is not None}
    else:
        found = dict(_listed())
    return {pid: entry for pid, entry in found.items() if entry.ended is ended}


def _listed() -> Iterator[tuple[int, Entry]]:
    command = ["ps", "-axo", "pid=,ppid=,sess=,rss=,stat=,time="]
    done = subprocess.run(command, capture_output=True, encoding="ascii", errors="replace", check=False)
    for line in done.stdout.splitlines():
        pid, parent, session, resident, state, computed = line.split()[:6]
        # Some systems give the session as an address.
        number = int(session) if session.isdigit() else 0
        yield (
            int(pid),
            Entry(int(parent), number, int(resident) * 1024, state.startswith("Z"), _seconds(computed)),
        )


def _seconds(text: str) -> float:
    """What ``ps`` writes as days, hours, minutes and seconds: "1-02:03:04", "3:04.05"."""
    days, _, rest = text.rpartition("-")
    total = 0.0
    for part in rest.split(":"):
        total = 60 * total + float(part)
    return total + 86400 * int(days or 0)


def _entry(pid: int) -> Entry | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in front is in parentheses, and may hold any character.
            state, parent, _, session, *rest = file.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    computed = (int(rest[7]) + int(rest[8])) / _TICKS
    return Entry(int(parent), int(session), int(rest[17]) * _PAGE, state in (b"Z", b"X"), computed)


_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def physical_memory() -> int:
    """The bytes of memory that this machine has, or this container is allowed."""
    size = _PAGE * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            size = min(size, int(Path(path).read_text(encoding="ascii")))
    return size


def environment_of(pid: int) -> bytes:
    """The variables that a process was started with; empty where they may not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


def share(pid: int) -> int:
    """The memory of a process, what it shares divided by the number of those that share it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            line = next(line for line in file if line.startswith(b"Pss:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        return 0
