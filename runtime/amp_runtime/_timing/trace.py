"""Traces for ``chrome://tracing``, Perfetto and TensorBoard."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from amp_runtime._saving.atomic import write_atomically
from amp_runtime._timing.stats import Step


def write_trace(
    path: Path, steps: Iterable[tuple[int, Step]], warmup: int, origin: tuple[float, int], merge: Path | None
) -> None:
    """Writes the steps as a trace, or into the one that ``torch.profiler`` wrote.

    Args:
        path: the file to write, compressed if it ends in ``.gz``.
        steps: each with its number, from 1.
        warmup: the number of the last step that is not warm.
        origin: one moment on the timer's clock, in seconds, and in nanoseconds of the Unix time.
        merge: a trace to which the steps are added, on its time axis.
    """
    trace: dict[str, Any] = {"baseTimeNanoseconds": origin[1], "displayTimeUnit": "ms"}
    if merge is not None:
        trace = json.loads(_read(merge))
    base = int(trace.get("baseTimeNanoseconds", 0))
    trace["traceEvents"] = [*trace.get("traceEvents", []), *_events(steps, warmup, origin, base)]
    text = json.dumps(trace).encode()
    data = gzip.compress(text) if path.suffix == ".gz" else text
    write_atomically(path, lambda file: file.write(data))


def _events(
    steps: Iterable[tuple[int, Step]], warmup: int, origin: tuple[float, int], base: int
) -> Iterator[dict[str, Any]]:
    """The ranges of each step, in microseconds after ``base``, which is in nanoseconds of the Unix time."""
    clock, nanoseconds = origin
    place = {"ph": "X", "cat": "step_timer", "pid": os.getpid(), "tid": "StepTimer"}
    for number, step in steps:
        begin = (nanoseconds - base) / 1e3 + (step.begin - clock) * 1e6
        arguments = {"step": number, "samples": step.samples, "warm": number > warmup}
        yield {**place, "name": f"step {number}", "ts": begin, "dur": step.batch * 1e6, "args": arguments}
        yield {**place, "name": "reader", "ts": begin, "dur": step.reader * 1e6, "args": {"step": number}}


def _read(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


class TraceOfSteps:
    """Runs ``torch.profiler`` over some steps of a loop, and writes its trace when the last of them has ended.

    Source:
        https://docs.pytorch.org/docs/stable/profiler.html
    """

    def __init__(self, path: Path, first: int, last: int) -> None:
        self.path = path
        self._first = first
        self._last = last
        self._profiler: Any = None

    def before(self, step: int) -> None:
        """Step ``step``, from 1, is about to begin."""
        if self._profiler is None and self._first <= step <= self._last:
            profiler = torch.profiler
            kinds = [profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available():
                kinds.append(profiler.ProfilerActivity.CUDA)
            self._profiler = profiler.profile(activities=kinds, record_shapes=True)
            self._profiler.__enter__()

    def after(self, step: int) -> None:
        """Step ``step`` has ended; with the last one, the trace is written."""
        if self._profiler is None or step < self._last:
            return
        profiler, self._profiler = self._profiler, None
        profiler.__exit__(None, None, None)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self.path))
