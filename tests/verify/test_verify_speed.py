"""A speed is told only where steps that were made in pairs say it, beyond what the machine does besides."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from amp_migrate.verify.plan import O0, ORIGINAL, ORIGINAL_AGAIN
from amp_migrate.verify.speed import notes, speeds
from amp_migrate.verify.traces import Backward, RankTrace, Trace

STEPS = 120


def run(name: str, pace: Callable[[int], float], *, level: str | None = None, computes_in: str = "bf16") -> Trace:
    times = itertools.accumulate(map(pace, range(STEPS)), initial=0.5)
    backwards = tuple(Backward(1.0, time) for time in times)
    rank = RankTrace(0, backwards, computes_in=(computes_in,))
    return Trace(name, level, 1, "ended", (rank,), half_type="bf16")


def traces(o1: Callable[[int], float], *others: Callable[[int], float], computes_in: str = "bf16") -> dict[str, Trace]:
    named = zip((ORIGINAL, ORIGINAL_AGAIN, O0), others, strict=False)
    found = [run(name, pace, computes_in=computes_in) for name, pace in named]
    found.append(run("O1", o1, level="O1", computes_in=computes_in))
    return {trace.name: trace for trace in found}


def noisy(pace: float, noise: float, seed: int) -> Callable[[int], float]:
    drawn = random.Random(seed)
    # Every tenth step does more, in each run the same.
    return lambda step: pace * (4 if step % 10 == 0 else 1) * drawn.uniform(1 - noise, 1 + noise)


def test_a_factor_is_told_with_its_spread() -> None:
    (speed,) = speeds(traces(noisy(0.5, 0.05, 0), *(noisy(1.0, 0.05, seed) for seed in (1, 2, 3))))
    assert (speed.run, speed.beside) == ("O1", ORIGINAL)
    assert speed.low < speed.factor < speed.high
    assert speed.low > 1.9 and speed.high < 2.1


def test_one_that_is_slower_is_told_too() -> None:
    (speed,) = speeds(traces(noisy(2.0, 0.01, 0), *(noisy(1.0, 0.01, seed) for seed in (1, 2, 3))))
    assert speed.high < 0.6


@pytest.mark.parametrize("again", [1.3, 0.7])
def test_a_machine_that_drifts_farther_than_the_difference_silences_it(again: float) -> None:
    assert speeds(traces(noisy(0.9, 0.01, 0), noisy(1.0, 0.01, 1), noisy(again, 0.01, 2), noisy(1.0, 0.01, 3))) == ()
    told = traces(noisy(0.3, 0.01, 0), noisy(1.0, 0.01, 1), noisy(again, 0.01, 2), noisy(1.0, 0.01, 3))
    assert [speed.run for speed in speeds(told)] == ["O1"]


def test_noise_as_large_as_the_difference_silences_it() -> None:
    assert speeds(traces(noisy(1.0, 0.9, 0), *(noisy(1.05, 0.9, seed) for seed in (1, 2, 3)))) == ()


def test_slow_first_steps_are_left_out() -> None:
    def warming(pace: float) -> Callable[[int], float]:
        return lambda step: 50.0 if step < 3 else pace

    (speed,) = speeds(traces(lambda step: 0.5, *[warming(1.0)] * 3))
    assert (speed.low, speed.factor, speed.high) == pytest.approx((2.0, 2.0, 2.0))


def test_without_a_second_run_of_the_original_nothing_is_told() -> None:
    assert speeds(traces(lambda step: 0.5, lambda step: 1.0)) == ()


def test_a_processor_that_emulates_the_type_tells_nothing_and_that_is_said_once() -> None:
    found = traces(lambda step: 19.0, *[lambda step: 1.0] * 3, computes_in="fp16")
    found["O2"] = run("O2", lambda step: 19.0, level="O2", computes_in="fp16")
    assert speeds(found) == ()
    assert len(list(notes(found))) == 1
    assert list(notes(traces(lambda step: 0.5, *[lambda step: 1.0] * 3))) == []
