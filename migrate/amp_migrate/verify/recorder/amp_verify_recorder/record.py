"""What has been recorded in this process, and how it gets to its file."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from .shards import own_part
from .sites import Sites

# Numbers that lie on a GPU are fetched so many steps at a time, lest the script wait for each.
_KEPT = 50
# But what is killed should have left when its last step began.
_KEPT_SECONDS = 1.0
_PATIENCE = 120.0
_PAUSE = 0.02
# The script's clock may go otherwise; see :mod:`.clock`.
_now = time.perf_counter


def complain(text: str) -> None:
    """Leave a word about what could not be recorded."""
    with contextlib.suppress(OSError):
        folder = Path(os.environ["AMP_VERIFY_RECORD"])
        with (folder / "complaints.txt").open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """A function whose errors cost a fact, and never the script."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:
            complain(f"{method.__qualname__}: {type(error).__name__}: {error}")

    return call


def calling_first(first: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, before each call of which ``first`` is called."""

    @functools.wraps(function)
    def both(*args: Any, **kwargs: Any) -> Any:
        first()
        return function(*args, **kwargs)

    return both


class Record:
    """The facts of one process.

    Attributes:
        active: false in processes that are forked off this one, such as a loader's workers.
        sites: the lines of the project.
        in_group: whether it is one of a process group.
        rank: which one, else what the launcher says.
        ranks: of how many.
        backwards: number of backward calls so far.
        finishers: return what is added at the end.
    """

    def __init__(self) -> None:
        self.folder = Path(os.environ["AMP_VERIFY_RECORD"])
        self.root = os.path.join(os.path.realpath(os.environ.get("AMP_VERIFY_ROOT") or os.getcwd()), "")
        self.sites = Sites(self.root)
        self.project = os.environ.get("AMP_VERIFY_PROJECT")
        self.steps = int(os.environ.get("AMP_VERIFY_STEPS") or 0)
        self.allowed = float(os.environ.get("AMP_VERIFY_SECONDS") or 0.0)
        self.least = int(os.environ.get("AMP_VERIFY_LEAST") or 0)
        self.seed = int(os.environ["AMP_VERIFY_SEED"]) if os.environ.get("AMP_VERIFY_SEED") else None
        self.active = True
        self.in_group = False
        self.rank = int(os.environ.get("RANK") or 0)
        self.ranks = int(os.environ.get("WORLD_SIZE") or 1)
        self.backwards = 0
        self.finishers: list[Callable[[], Iterator[tuple[str, Any]]]] = []
        self._started = _now()
        self._pending: list[dict[str, Any]] = []
        self._kept = 0
        self._counter: int | None = None
        # At the first backward call and at the last.
        self._processor_times: list[float] = []
        self._written = 0.0
        self._finished = False
        atexit.register(self._ended)
        os._exit = self._recording(os._exit)  # type: ignore[assignment]
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._retire)

    def seconds(self) -> float:
        """The time since the recorder started."""
        return _now() - self._started

    def look_around(self) -> None:
        """Note which of the processes that train together this one is; at the end their group may be gone."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self.in_group = True
            self.rank, self.ranks = distributed.get_rank(), distributed.get_world_size()

    def add(self, **facts: Any) -> None:
        """Keep facts until they are written; tensors among them must not change meanwhile."""
        self._pending.append(facts)

    def step(self) -> None:
        """Count a backward call that is about to begin; the one too many does not begin."""
        if self._is_enough():
            self.stop()
        self.backwards += 1
        self._count()
        self._processor_times[1:] = [time.process_time()] * (1 if self._processor_times else 2)
        self._kept += 1
        if self._kept > _KEPT or self.seconds() - self._written > _KEPT_SECONDS:
            try:
                self.write()
            except OSError as error:
                complain(f"a part of the record is lost: {error}")

    def _is_enough(self) -> bool:
        made = self.backwards
        if self.steps and made >= self.steps:
            return True
        # Another time it is a little faster or slower, and should still stop at the same number.
        is_round = set(str(made)[1:]) <= {"0"}
        return bool(self.allowed) and is_round and made >= self.least and self.seconds() > self.allowed

    def _count(self) -> None:
        """Say how many there were, for those who watch."""
        if self._counter is None:
            self._counter = -1
            with contextlib.suppress(OSError):
                path = self.folder / f"steps{self.rank}-{os.getpid()}"
                self._counter = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if self._counter >= 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._counter, b"%d" % self.backwards, 0)

    def write(self) -> None:
        """Append everything that is kept to the file."""
        pending, self._pending, self._kept = self._pending, [], 0
        self._written = self.seconds()
        if not self.in_group:
            # One that the script has started itself has its rank of the group alone, and it names the file.
            self.look_around()
        if not pending:
            return
        lines = [json.dumps(facts, separators=(",", ":")) + "\n" for facts in _fetched(pending)]
        with (self.folder / f"rank{self.rank}-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(lines)

    def stop(self) -> NoReturn:
        """End this process here, as soon as all that train with it have come as far."""
        with contextlib.suppress(Exception):
            self._finish("stopped")
            self._meet()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        # The script's own handlers would save, upload or wait for other processes.
        os._exit(0)

    def _recording(self, leave: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
        """``os._exit``, which calls no function of ``atexit``: a script may end that way, to wait for no thread."""

        @functools.wraps(leave)
        def left(status: int) -> NoReturn:
            self._ended()
            leave(status)

        return left

    def _ended(self) -> None:
        if self.active:
            with contextlib.suppress(Exception):
                self._finish("ended")

    def _finish(self, how: str) -> None:
        if self._finished:
            return
        self._finished = True
        if self.backwards:
            for finisher in self.finishers:
                try:
                    for name, value in finisher():
                        self.add(**{name: value})
                except Exception as error:
                    complain(f"{finisher.__qualname__}: {type(error).__name__}: {error}")
            self.add(end=how, processor_times=self._processor_times)
            self.write()
            (self.folder / f"there{self.rank}").touch()

    def _meet(self) -> None:
        """Wait for the others: one that leaves early would break a collective that they are in."""
        end = _now() + _PATIENCE
        while _now() < end and len(list(self.folder.glob("there*"))) < self.ranks:
            time.sleep(_PAUSE)

    def _retire(self) -> None:
        self.active = False


def _fetched(pending: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The facts with numbers in place of tensors, which are fetched together for each device."""
    torch = sys.modules.get("torch")
    if torch is None:
        return pending
    places: dict[Any, list[tuple[dict[str, Any], str, Any]]] = {}
    for facts in pending:
        for name, value in facts.items():
            if isinstance(value, torch.Tensor):
                places.setdefault(value.device, []).append((facts, name, value))
    for found in places.values():
        numbers = torch.stack([own_part(value).reshape(()).to(torch.float64) for _, _, value in found]).tolist()
        for (facts, name, _), number in zip(found, numbers, strict=True):
            # JSON has no word for infinity, and repr would do; hex says that no digit is lost.
            facts[name] = float(number).hex()
    return pending
