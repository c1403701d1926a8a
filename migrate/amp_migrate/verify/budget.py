"""How far each run goes, so that all of them together take no more than a few times what the original takes.

The original goes to its end, or, where that takes longer than a minute, as far as it comes in one. What has to repeat
it to its end goes as far: O0, alone and in several processes. All others share what is left, each by fewer steps. No
run is left out, and none makes so few steps that its checks could not tell.

Bounds that come from a measured time are rounded to numbers such as 20, 50 and 100, so that a second verification
states the same ones.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from amp_migrate.verify.checks.common import LOSSY
from amp_migrate.verify.checks.runs import patience
from amp_migrate.verify.plan import ORIGINAL, Planned
from amp_migrate.verify.traces import Trace
from amp_migrate.verify.watching import Going

FACTOR = 4
"""So many times the original's own time."""
WHOLE_SECONDS = 60.0
"""The original goes to its end if it gets there in this time."""
LEAST_STEPS = 20
LEAST_SLOW_STEPS = 10
"""The same where half precision is only emulated, so that its steps take several times as long."""
LEAST_UPDATES = 5
"""No run makes fewer backward calls, nor fewer than it takes to so many steps of an optimizer."""
_MOST_OF_LEAST = 200
_SLACK = 1.25
# So many times as long as a step in float32 is slow.
_SLOW = 3.0


@dataclass(frozen=True)
class Bound:
    """Where a run is ended.

    Attributes:
        steps: at the start of the backward call after so many; None for no such bound.
        seconds: at the start of the first one after this time whose number is a round one; None for no such bound.
        least: but not before it has made so many.
    """

    steps: int | None = None
    seconds: float | None = None
    least: int = LEAST_STEPS


@dataclass
class Budget:
    """Shares out the time.

    Attributes:
        steps: after how many backward calls the original ends; None for its end, within a time.
        full: whether every run goes as far as the original, and that to its end.
        started: seconds that importing torch takes; the original alone would spend them, too.
        besides: seconds that were spent before the first run, on the migration.
        spent: seconds of all runs so far, with what lies between them.
    """

    steps: int | None = None
    full: bool = False
    started: float = 0.0
    besides: float = 0.0
    spent: float = field(default=0.0, init=False)
    _original: Trace | None = field(default=None, init=False)
    _before: float = field(default=0.0, init=False)
    _in_half: Trace | None = field(default=None, init=False)
    _to_come: list[Planned] = field(default_factory=list, init=False)

    def expect(self, runs: Iterable[Planned]) -> None:
        """These runs will be made."""
        self._to_come = list(runs)
        self.spent, self._original, self._in_half = 0.0, None, None

    def bound(self, planned: Planned) -> Bound:
        """Where a run that is about to be made ends."""
        if planned.reach == "end":
            return Bound()
        original = self._original
        if original is None:
            return Bound(self.steps, None if self.steps or self.full else WHOLE_SECONDS)
        whole = self._whole(planned, original)
        if self.full or planned.reach == "whole":
            return whole
        least, allowed = self._least(planned, original), self._share(planned, original)
        steps = max(least, _rounded_down(int((allowed - self._before) / self._pace(planned, original))))
        bounded = steps < (whole.steps or _steps(original))
        seconds = allowed * _SLACK
        if _is_in_half(planned) and self._in_half is None and planned.processes == 1:
            # How slow half precision is here, this run is the first to tell.
            seconds = max(seconds, self._before + LEAST_STEPS * _SLOW * self._pace(planned, original))
            return Bound(steps if bounded else whole.steps, seconds, _least(original, slow=True))
        if not bounded:
            return whole
        # Several processes do not end at the same time, and have to after the same step.
        return Bound(steps, seconds if planned.processes == 1 else None, least)

    def note(self, planned: Planned, trace: Trace, seconds: float | None = None) -> None:
        """A run has been made; with the copy of the project before it, and the reading after, it took so long."""
        self._to_come = [other for other in self._to_come if other.name != planned.name]
        if planned.reach == "end":
            return  # what it takes is no part of what the others share
        self.spent += trace.seconds if seconds is None else seconds
        if planned.name == ORIGINAL:
            self._original = trace if trace.usable else None
            self._before = _before(trace) if trace.usable else 0.0
        elif trace.usable and trace.processes == 1:
            # Less than the first time, where what the original imports is there already.
            self._before = min(self._before, _before(trace))
        if trace.usable and trace.processes == 1 and _is_in_half(planned):
            self._in_half = trace

    @property
    def original_steps(self) -> int:
        """How many backward calls the original made."""
        return _steps(self._original) if self._original is not None else self.steps or 0

    def patience(self, planned: Planned) -> float | None:
        """After how long without a step a run is ended: it waits for something; None where that cannot be told.

        What makes a model int8 computes for minutes, without a step.
        """
        if planned.reach == "end":
            return None
        alike = self._in_half if _is_in_half(planned) else self._original
        return None if alike is None else _SLACK * patience(alike, planned.processes)

    def going(self, planned: Planned, bound: Bound, seconds: float, made: int) -> Going:
        """How far a run has come, and how long it and those after it will take."""
        original = self._original
        if original is None:
            of = bound.steps
            left = None if of is None or not made else seconds / made * (of - made)
            return Going(seconds, made, of, left)
        if planned.reach == "end" and original.status != "ended":
            return Going(seconds, made)
        of = bound.steps or math.ceil(_steps(original) / max(planned.processes, planned.batch_factor))
        expected = self.estimate(planned)
        left = max(expected - seconds, 0.0) if made < 2 else seconds / made * max(of - made, 0)
        later = sum(self.estimate(other) for other in self._to_come if other.name != planned.name)
        return Going(seconds, made, of, left, later)

    def estimate(self, planned: Planned) -> float:
        """About how long a run takes."""
        original = self._original
        if original is None:
            return 0.0
        bound = self.bound(planned) if planned.reach == "part" else self._whole(planned, original)
        made = _steps(original) / planned.processes
        return self._before + (bound.steps or made) * self._pace(planned, original)

    def notes(self) -> Iterator[str]:
        """What a reader has to know."""
        if self._original is None or self.full:
            return
        if self.spent + self.started + self.besides > FACTOR * self._own(self._original) * _SLACK:
            yield (
                f"All runs together took more than {FACTOR} times what the original takes: each makes at least "
                f"{_least(self._original)} steps, or all that there are, and begins with what the script does before "
                "its first."
            )

    def _whole(self, planned: Planned, original: Trace) -> Bound:
        """As far as the original: in N processes, which share the samples out, an N-th of its steps."""
        if self.steps is not None:
            return Bound(max(math.ceil(self.steps / planned.processes), min(self.steps, LEAST_STEPS)))
        if original.status == "ended":
            return Bound()
        steps = _steps(original)
        return Bound(max(math.ceil(steps / planned.processes), min(steps, LEAST_STEPS)))

    def _own(self, original: Trace) -> float:
        return self.started + original.seconds

    def _share(self, planned: Planned, original: Trace) -> float:
        """The seconds that a run may take which shares what is left with others."""
        left = FACTOR * self._own(original) - self.started - self.besides - self.spent
        left -= sum(self.estimate(run) for run in self._to_come if run.reach == "whole" and run != planned)
        sharing = {run.name for run in self._to_come if run.reach == "part"} | {planned.name}
        return left / len(sharing)

    def _least(self, planned: Planned, original: Trace) -> int:
        """How many steps a run makes at least."""
        if not _is_in_half(planned) or self._in_half is None:
            return _least(original)
        alone = Planned(planned.name, level=planned.level, plain_amp=planned.plain_amp)
        slow = self._pace(alone, original) > _SLOW * self._pace(Planned(ORIGINAL), original)
        return _least(original, slow=slow)

    def _pace(self, planned: Planned, original: Trace) -> float:
        """The seconds that a step takes."""
        alike = self._in_half if self._in_half is not None and _is_in_half(planned) else original
        pace = (alike.seconds - _before(alike)) / _steps(alike)
        several = max(planned.processes / _processors(), 1.0) * planned.batch_factor
        return max(pace, 1e-6) * several


def _is_in_half(planned: Planned) -> bool:
    return planned.plain_amp or planned.level in LOSSY


def _steps(trace: Trace) -> int:
    return min((len(rank.backwards) for rank in trace.ranks), default=0)


def _before(trace: Trace) -> float:
    """The seconds before the first step."""
    return trace.ranks[0].backwards[0].time


def _least(original: Trace, *, slow: bool = False) -> int:
    """How many backward calls tell: those of some updates, where gradients are accumulated."""
    rank = original.ranks[0]
    per_update = len(rank.backwards) / max(len(rank.updates), 1)
    steps = LEAST_SLOW_STEPS if slow else LEAST_STEPS
    return min(_MOST_OF_LEAST, max(steps, math.ceil(LEAST_UPDATES * per_update)))


def _rounded_down(number: int) -> int:
    """The largest of 1, 2, 5, 10, 20, 50 and so on that is not larger."""
    if number < 1:
        return 0
    unit: int = 10 ** (len(str(number)) - 1)
    return max(digit * unit for digit in (1, 2, 5) if digit * unit <= number)


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
