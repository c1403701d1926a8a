"""Timing of things that do the same, on a machine that may be busy with something else.

Contenders take turns, so that whatever slows the machine down slows down all of them. On one CPU thread the
processor's time counts, which does not run while another program has the core; otherwise the wall clock does.
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date

import torch
import torch.distributed as dist


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Contender:
    """One way to do what the others of a comparison do as well.

    Attributes:
        name: what it is, as printed.
        call: does it once.
        enter: run before each of its turns, not timed.
        before: run before each call, not timed.
    """

    name: str
    call: Callable[[], object]
    enter: Callable[[], object] = _nothing
    before: Callable[[], object] | None = None

    def once(self) -> None:
        """Does it once, untimed."""
        if self.before is not None:
            self.before()
        self.call()


@dataclass(frozen=True)
class Effort:
    """How long to measure: so many turns, each of so many seconds."""

    rounds: int
    seconds: float


FULL = Effort(rounds=15, seconds=0.02)
QUICK = Effort(rounds=2, seconds=0.0)


@dataclass
class Comparison:
    """What was measured in one case.

    Attributes:
        case: what was done, as printed.
        seconds: by contender the time of one call, one number a turn. The first contender is what the others are
            compared with.
    """

    case: str
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def speed(self, name: str) -> tuple[float, float]:
        """How many times as fast as the first: by the best turns, and the median over the rounds."""
        first, other = next(iter(self.seconds.values())), self.seconds[name]
        rounds = [one / two for one, two in zip(first, other, strict=True)]
        return min(first) / min(other), statistics.median(rounds)


def compare(
    case: str,
    contenders: Sequence[Contender],
    effort: Effort,
    device: str = "cpu",
    together: bool = False,
) -> Comparison:
    """Lets contenders take turns.

    Args:
        case: what they do.
        contenders: the first is what the others are compared with.
        effort: how long to measure.
        device: ``"cpu"``, or ``"cuda"``, which is waited for at both ends of a turn.
        together: all processes of the default group measure at once; a turn takes as long as the slowest of them.
    """
    gc.collect()
    gc.freeze()  # what was imported need not be searched in every turn
    calls = [_calls_in_a_turn(contender, effort, device, together) for contender in contenders]
    result = Comparison(case, {contender.name: [] for contender in contenders})
    for number in range(effort.rounds):
        for position in range(len(contenders)):
            index = (position + number) % len(contenders)  # nobody is always the first
            contender = contenders[index]
            contender.enter()
            contender.once()
            result.seconds[contender.name].append(_turn(contender, calls[index], device, together))
    return result


def _calls_in_a_turn(contender: Contender, effort: Effort, device: str, together: bool) -> int:
    contender.enter()
    for _ in range(3 if effort.seconds else 1):
        contender.once()
    if not effort.seconds:
        return 1
    both = Contender(contender.name, contender.once)  # what goes before takes its time as well
    return max(1, min(5000, round(effort.seconds / _turn(both, 3, device, together))))


def _turn(contender: Contender, calls: int, device: str, together: bool) -> float:
    """Seconds of one call."""
    cpu_alone = device == "cpu" and not together and torch.get_num_threads() == 1
    clock = time.process_time if cpu_alone else time.perf_counter
    if together:
        dist.barrier()
    if contender.before is None:
        elapsed = _timed(contender.call, calls, device, clock)
    else:
        elapsed = 0.0
        for _ in range(calls):
            contender.before()
            elapsed += _timed(contender.call, 1, device, clock)
    return (_slowest(elapsed, device) if together else elapsed) / calls


def _timed(call: Callable[[], object], calls: int, device: str, clock: Callable[[], float]) -> float:
    _wait_for(device)
    start = clock()
    for _ in range(calls):
        call()
    _wait_for(device)
    return max(clock() - start, 1e-9)


def _wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _slowest(seconds: float, device: str) -> float:
    place = device if dist.get_backend() == "nccl" else "cpu"
    value = torch.tensor([seconds], dtype=torch.float64, device=place)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return value.item()


def table(comparisons: Sequence[Comparison]) -> str:
    """Comparisons as a markdown table."""
    lines = [
        "| case | contender | min | median | speed by min | by median |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for comparison in comparisons:
        for index, (name, seconds) in enumerate(comparison.seconds.items()):
            by_min, by_median = comparison.speed(name)
            speeds = f"x{by_min:.2f} | x{by_median:.2f}" if index else "1 | 1"
            times = f"{_readable(min(seconds))} | {_readable(statistics.median(seconds))}"
            lines.append(f"| {'' if index else comparison.case} | {name} | {times} | {speeds} |")
    return "\n".join(lines)


def _readable(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def machine(device: str) -> str:
    """The date, hardware and versions, as a markdown list."""
    lines = [
        f"- {date.today().isoformat()}, {_cpu_model()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s)",
        f"- torch {torch.__version__}, Python {platform.python_version()}, {platform.system()}",
    ]
    if device == "cuda":
        lines.append(
            f"- {torch.cuda.get_device_name()}, {torch.cuda.device_count()} of them, CUDA {torch.version.cuda}"
        )
    if hasattr(os, "getloadavg"):
        lines.append(f"- load average at the start: {os.getloadavg()[0]:.1f}")
    return "\n".join(lines)


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as text:
            return next(line.split(":", 1)[1].strip() for line in text if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
