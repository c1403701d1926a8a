"""The figures of timed steps: of each, of a stretch of them, and of all ranks together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Spread(NamedTuple):
    """The average, the largest and the smallest of a quantity over the steps."""

    avg: float
    max: float
    min: float


class StepStats(NamedTuple):
    """What a :class:`StepTimer` measured over its warm steps.

    Attributes:
        steps: how many they are.
        reader_cost: seconds of a step that were spent waiting for its batch.
        batch_cost: seconds of a whole step, reading included.
        ips: samples a second; steps a second where the number of samples is unknown.
        reader_ratio: the part of the time that was spent waiting for batches, from 0 to 1.
    """

    steps: int
    reader_cost: Spread
    batch_cost: Spread
    ips: Spread
    reader_ratio: float


@dataclass
class Step:
    """One step.

    Attributes:
        begin: when it began, in seconds on the timer's clock.
        reader: its seconds of waiting for its batch.
        batch: its seconds altogether.
        samples: how many it has trained on, if known.
        first: whether it is the first of a pass over the loader.
    """

    begin: float
    reader: float
    batch: float
    samples: int | None
    first: bool = False


@dataclass
class Extent:
    """Total, largest and smallest of what was added."""

    total: float = 0.0
    max: float = 0.0
    min: float = float("inf")

    def add(self, value: float) -> None:
        self.total += value
        self.max = max(self.max, value)
        self.min = min(self.min, value)


@dataclass
class Window:
    """The steps of some stretch of the training."""

    steps: int = 0
    items: int = 0
    in_samples: bool = True
    reader: Extent = field(default_factory=Extent)
    batch: Extent = field(default_factory=Extent)
    ips: Extent = field(default_factory=Extent)
    starts: Extent = field(default_factory=Extent)
    """Seconds of reading of the steps that begin a pass over the loader."""

    def add(self, step: Step) -> None:
        self.in_samples &= step.samples is not None
        items = 1 if step.samples is None else step.samples
        self.steps += 1
        self.items += items
        self.reader.add(step.reader)
        self.batch.add(step.batch)
        if step.first:
            self.starts.add(step.reader)
        if step.batch > 0:
            self.ips.add(items / step.batch)

    def stats(self) -> StepStats:
        if not self.steps:
            return StepStats(0, Spread(0.0, 0.0, 0.0), Spread(0.0, 0.0, 0.0), Spread(0.0, 0.0, 0.0), 0.0)
        whole = self.batch.total
        times = [Spread(e.total / self.steps, e.max, e.min) for e in (self.reader, self.batch)]
        ips = Spread(self.items / whole, self.ips.max, self.ips.min) if whole > 0 else Spread(0.0, 0.0, 0.0)
        return StepStats(self.steps, times[0], times[1], ips, self.reader.total / whole if whole > 0 else 0.0)


def combined(ranks: list[StepStats]) -> StepStats:
    """Those of all ranks together: times as averages, maxima and minima over the ranks, samples as sums."""
    measured = [stats for stats in ranks if stats.steps] or ranks
    times = [
        Spread(
            sum(spread.avg for spread in spreads) / len(spreads),
            max(spread.max for spread in spreads),
            min(spread.min for spread in spreads),
        )
        for spreads in ([stats.reader_cost for stats in measured], [stats.batch_cost for stats in measured])
    ]
    ips = Spread(*(sum(values) for values in zip(*(stats.ips for stats in measured), strict=True)))
    whole = sum(stats.batch_cost.avg for stats in measured)
    ratio = sum(stats.reader_cost.avg for stats in measured) / whole if whole > 0 else 0.0
    return StepStats(max(stats.steps for stats in measured), times[0], times[1], ips, ratio)
