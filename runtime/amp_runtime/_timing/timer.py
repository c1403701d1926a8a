"""``amp.StepTimer``: how long a training step takes, and how much of it waits for data."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch

from amp_runtime._core.context import context
from amp_runtime._core.trees import tensors_in
from amp_runtime._distributed.group import from_all_processes
from amp_runtime._saving.atomic import write_atomically
from amp_runtime._timing import picture
from amp_runtime._timing.advice import advice
from amp_runtime._timing.stats import Step, StepStats, Window, combined
from amp_runtime._timing.trace import TraceOfSteps, write_trace

T = TypeVar("T")

_CUDA = ("host", "synchronize", "events")


class StepTimer:
    """Measures each step of a training loop: the time to get its batch, the time of it all, and the throughput::

        timer = amp.StepTimer()
        for step, (x, y) in enumerate(timer(train_loader)):
            ...
            if step % 100 == 0:
                print(timer.step_info())  # reader_cost: 0.00083 s batch_cost: 0.10713 s ips: 298.702 samples/s
        print(timer.summary())

    The quantities are those of ``paddle.profiler.Profiler(timer_only=True)``
    (https://www.paddlepaddle.org.cn/documentation/docs/en/api/paddle/profiler/Profiler_en.html): ``reader_cost`` is
    part of ``batch_cost``, and ``ips`` is samples over ``batch_cost``. In loops that take their batches otherwise, call
    :meth:`start` once before the first batch, :meth:`loaded` when a batch is there, and :meth:`step` at the end of its
    step.

    While ``torch.profiler`` records, its trace shows the ranges ``reader`` and ``step``; :meth:`export_chrome_trace`
    adds all steps to a trace that it exported.

    Args:
        warmup: how many first steps are left out: they pay for caches, compilation and starting workers.
        unit: what a sample is called in ``ips``, such as ``"images"``.
        cuda: how the end of a step is found on a GPU. ``"host"`` reads the clock and waits for nothing: right over
            many steps, since the GPU holds up a loop that is ahead of it. ``"synchronize"`` waits for the GPU at
            the end of each step, which makes each one exact and all of them slower. ``"events"`` lets the GPU take the
            time between the ends of steps, and waits only when a report asks. On the CPU all are the same.
        history: how many of the latest steps :meth:`export_chrome_trace` and the report can show.
        report: an HTML file with a picture of the steps, the figures and the :meth:`advice`. The main process writes it
            at the end of each pass over the loader, and :meth:`write_report` at any time.
        trace: a file for a trace of ``torch.profiler``, with the operations of the steps that ``trace_steps`` names.
            The main process records it, which slows those steps down; they still count.
        trace_steps: the first and the last step of the trace, counted from 1 over all passes.
        clock: returns seconds; for tests.

    Raises:
        ValueError: an argument is not one of the allowed values.
    """

    def __init__(
        self,
        *,
        warmup: int = 10,
        unit: str = "samples",
        cuda: Literal["host", "synchronize", "events"] = "host",
        history: int = 100_000,
        report: str | os.PathLike[str] | None = None,
        trace: str | os.PathLike[str] | None = None,
        trace_steps: tuple[int, int] = (11, 15),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not isinstance(warmup, int) or warmup < 0:
            raise ValueError(f"amp.StepTimer got warmup={warmup!r}; allowed: 0, 1, 2, ...")
        if cuda not in _CUDA:
            raise ValueError(f"amp.StepTimer got cuda={cuda!r}; allowed: {', '.join(map(repr, _CUDA))}")
        if not _is_stretch(trace_steps):
            raise ValueError(f"amp.StepTimer got trace_steps={trace_steps!r}; allowed: (first, last), from 1")
        self.warmup = warmup
        self.unit = unit
        self._clock = clock
        self._cuda = cuda if torch.cuda.is_available() else "host"
        self._origin = (clock(), time.time_ns())
        self._range: Any = None
        self._event: Any = None
        self._pending: deque[tuple[Step, Any, Any]] = deque()
        self._begin: float | None = None
        self._loaded: float | None = None
        self._samples: int | None = None
        self._first = False
        self._ended = 0
        self._finished = 0
        self._loader: Any = None
        self._report = None if report is None else Path(report)
        self._trace = None if trace is None else TraceOfSteps(Path(trace), *trace_steps)
        self._all = Window()
        self._recent = Window()
        self._steps: deque[tuple[int, Step]] = deque(maxlen=history)

    def __call__(self, loader: Iterable[T], *, samples: int | Callable[[T], int] | None = None) -> TimedLoader[T]:
        """The same batches, while the steps of the loop over them are measured.

        Args:
            loader: any iterable of batches.
            samples: how many samples a batch has, or a function that tells. ``None`` is the first dimension of the
                first tensor in the batch.
        """
        return TimedLoader(self, loader, samples)

    def start(self) -> None:
        """Begins the first step of a loop: its batch is about to be read."""
        self._close_range()
        self._first = True
        self._begin_trace()
        if self._cuda == "events":
            self._event = _recorded_event()
        self._begin = self._clock()
        self._open_range("reader")

    def loaded(self, samples: int | None = None) -> None:
        """The step's batch is there.

        Args:
            samples: how many samples it has, if known already.

        Raises:
            RuntimeError: :meth:`start` was not called before.
        """
        if self._begin is None:
            raise RuntimeError("StepTimer.loaded was called before StepTimer.start")
        self._loaded = self._clock()
        self._samples = samples
        self._open_range("step")

    def step(self, samples: int | None = None) -> None:
        """The step is done, and the next one begins: its batch is about to be read.

        Args:
            samples: how many samples it has trained on; what :meth:`loaded` was told if ``None``.

        Raises:
            RuntimeError: :meth:`start` was not called before.
        """
        if self._begin is None:
            raise RuntimeError("StepTimer.step was called before StepTimer.start")
        if self._cuda == "synchronize":
            torch.cuda.synchronize()
        end = self._clock()
        reader = 0.0 if self._loaded is None else self._loaded - self._begin
        known = self._samples if samples is None else samples
        step = Step(self._begin, reader, end - self._begin, known, first=self._first)
        if self._cuda == "events":
            earlier, self._event = self._event, _recorded_event()
            self._pending.append((step, earlier, self._event))
            self._settle(wait=False)
        else:
            self._record(step)
        self._ended += 1
        self._first = False
        self._close_range()
        if self._trace is not None:
            self._trace.after(self._ended)
        self._begin_trace()
        # The clock is read again after a trace was written, which belongs to no step.
        self._begin, self._loaded, self._samples = end if self._trace is None else self._clock(), None, None
        self._open_range("reader")

    def stop(self) -> None:
        """Ends the loop; a step that has begun does not count."""
        self._close_range()
        self._begin = self._loaded = None
        if self._report is not None and context.rank == 0:
            self.write_report(self._report)

    def _begin_trace(self) -> None:
        if self._trace is not None and context.rank == 0:
            self._trace.before(self._ended + 1)

    def _settle(self, wait: bool) -> None:
        """Takes over the times of the steps that the GPU has finished, or of all."""
        while self._pending:
            step, earlier, event = self._pending[0]
            if wait:
                event.synchronize()
            elif not event.query():
                return
            step.batch = earlier.elapsed_time(event) / 1000
            self._pending.popleft()
            self._record(step)

    def _record(self, step: Step) -> None:
        self._finished += 1
        self._steps.append((self._finished, step))
        self._recent.add(step)
        if self._finished > self.warmup:
            self._all.add(step)
        elif self._finished == self.warmup:
            self._recent = Window()

    def _open_range(self, name: str) -> None:
        self._close_range()
        self._range = torch.profiler.record_function(name)
        self._range.__enter__()

    def _close_range(self) -> None:
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None

    def stats(self, *, all_ranks: bool = False) -> StepStats:
        """The figures of the warm steps so far; zeros if there are none.

        Args:
            all_ranks: those of all processes together, a collective that every rank calls: the times are averages,
                maxima and minima over the ranks, and ``ips`` is the sum of theirs.
        """
        self._settle(wait=True)
        own = self._all.stats()
        return combined(from_all_processes(own)) if all_ranks else own

    def step_info(self) -> str:
        """One line about the steps since the last call, as Paddle prints it; empty if there were none.

        The steps of the warm-up are left out once there are others.
        """
        self._settle(wait=True)
        stats, unit = self._recent.stats(), self._unit_of(self._recent)
        self._recent = Window()
        if not stats.steps:
            return ""
        return (
            f"reader_cost: {stats.reader_cost.avg:.5f} s batch_cost: {stats.batch_cost.avg:.5f} s "
            f"ips: {stats.ips.avg:.3f} {unit}"
        )

    def advice(self) -> list[str]:
        """What would make this process wait less for its batches; empty where it hardly waits.

        It is for more than 10 % of waiting (a ``reader_ratio`` above 0.1) over the warm steps. Each string is one
        sentence; the likeliest comes first.
        """
        self._settle(wait=True)
        return advice(self._all, self._loader)

    def summary(self, *, all_ranks: bool = False) -> str:
        """A table of average, maximum and minimum over the warm steps, as Paddle prints it, and the :meth:`advice`.

        Args:
            all_ranks: see :meth:`stats`.
        """
        stats = self.stats(all_ranks=all_ranks)
        rows = {"reader_cost": stats.reader_cost, "batch_cost": stats.batch_cost, "ips": stats.ips}
        lines = [
            "Perf Summary".center(100, "="),
            f"Reader Ratio: {100 * stats.reader_ratio:.3f}%",
            f"Time Unit: s, IPS Unit: {self._unit_of(self._all)}",
            _row("", "avg", "max", "min"),
            *(_row(name, *(f"{value:.5f}" for value in spread)) for name, spread in rows.items()),
        ]
        lines += [f"Advice: {line}" for line in self.advice()]
        return "\n".join(lines)

    def write_report(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture of this process's steps, as ``report`` does.

        Args:
            path: the HTML file; missing folders are made.
        """
        stats = self.stats()
        steps = list(self._steps)
        text = picture.page(steps, self.warmup, stats, self._unit_of(self._all), self.advice())
        write_atomically(Path(path), lambda file: file.write(text.encode()))

    def _unit_of(self, window: Window) -> str:
        return f"{self.unit if window.in_samples else 'steps'}/s"

    def export_chrome_trace(self, path: str | os.PathLike[str], *, merge: str | os.PathLike[str] | None = None) -> None:
        """Writes the latest steps as a trace for ``chrome://tracing``, Perfetto or TensorBoard.

        Args:
            path: the file to write, compressed if it ends in ``.gz``.
            merge: a trace that ``torch.profiler.profile.export_chrome_trace`` wrote; the steps are added to its events
                on its time axis. It may be ``path`` itself.
        """
        self._settle(wait=True)
        into = None if merge is None else Path(merge)
        write_trace(Path(path), self._steps, self.warmup, self._origin, into)


class TimedLoader(Generic[T]):
    """The batches of a loader, with a timer around the steps of the loop over them."""

    def __init__(self, timer: StepTimer, loader: Iterable[T], samples: int | Callable[[T], int] | None) -> None:
        self._timer = timer
        self._loader = loader
        self._samples = samples
        position = getattr(loader, "__dict__", {}).get("_amp_position")
        if position is not None:  # so that a checkpoint saves the position in the loader
            self._amp_position = position

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[T]:
        self._timer._loader = self._loader
        self._timer.start()
        try:
            for batch in self._loader:
                self._timer.loaded(self._count(batch))
                yield batch
                self._timer.step()
        finally:
            self._timer.stop()

    def _count(self, batch: T) -> int | None:
        if callable(self._samples):
            return self._samples(batch)
        if self._samples is not None:
            return self._samples
        return next((len(tensor) for tensor in tensors_in(batch) if tensor.dim()), None)


def _is_stretch(steps: Any) -> bool:
    return (
        isinstance(steps, (tuple, list))
        and len(steps) == 2
        and all(isinstance(step, int) for step in steps)
        and 1 <= steps[0] <= steps[1]
    )


def _recorded_event() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _row(name: str, *values: str) -> str:
    return "|" + "|".join(cell.center(17) for cell in (name, *values)) + "|"
