"""All runs together take no more than a few times what the original takes, by fewer steps and never by fewer runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from amp_migrate.verify import budget as budgets
from amp_migrate.verify.budget import FACTOR, LEAST_SLOW_STEPS, LEAST_STEPS, Bound, Budget
from amp_migrate.verify.output import words_of
from amp_migrate.verify.plan import O0, O0_TOGETHER, ORIGINAL, ORIGINAL_AGAIN, Asked, Planned, planned
from amp_migrate.verify.traces import Backward, RankTrace, Status, Trace, Update
from amp_migrate.verify.watching import Going

RUNS = tuple(planned(Asked("train.py")))


@pytest.fixture(autouse=True)
def enough_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "_processors", lambda: 2)


def trace_of(
    run: Planned, steps: int, pace: float, *, before: float = 1.0, status: Status = "ended", per_update: int = 1
) -> Trace:
    backwards = tuple(Backward(1.0, before + pace * step) for step in range(steps))
    updates = tuple(Update(0, step, 1.0) for step in range(per_update, steps + 1, per_update))
    ranks = (RankTrace(0, backwards, updates=updates),) * run.processes
    return Trace(run.name, run.level, run.processes, status, ranks, seconds=before + pace * steps)


def made(
    budget: Budget, steps: int, pace: float, *, slower: float = 1.0, status: Status = "ended", **more: float
) -> Iterator[tuple[Planned, Bound, float]]:
    """Each run, its bound, and the seconds that it takes as far as that; ``slower`` is what half precision is."""
    budget.expect(RUNS)
    for run in RUNS:
        bound = budget.bound(run)
        own = pace * (slower if run.plain_amp or run.level in ("O1", "O2") else 1.0)
        count = min(steps if run.processes == 1 else steps // run.processes, bound.steps or steps)
        if bound.seconds is not None and run.name != ORIGINAL:
            count = min(count, max(bound.least, round(bound.seconds / own)))
        of_run = status if run.name == ORIGINAL else "stopped"
        trace = trace_of(run, count, own, status=of_run, **more)
        budget.note(run, trace)
        yield run, bound, trace.seconds


def test_a_long_training_takes_four_times_its_own_time_and_no_run_is_left_out() -> None:
    budget = Budget()
    found = list(made(budget, 5000, 0.01))
    assert [run for run, _, _ in found] == list(RUNS)
    own = found[0][2]
    assert FACTOR * own * 0.6 < sum(seconds for _, _, seconds in found) <= FACTOR * own
    assert list(budget.notes()) == []


def test_what_has_to_repeat_the_original_goes_as_far_as_it() -> None:
    bounds = {run.name: bound for run, bound, _ in made(Budget(), 5000, 0.01)}
    assert bounds[ORIGINAL] == Bound(None, budgets.WHOLE_SECONDS)
    assert bounds[O0] == bounds[O0_TOGETHER] == Bound()
    others = {name: bound for name, bound in bounds.items() if name not in (ORIGINAL, O0, O0_TOGETHER)}
    assert all(bound.steps is not None and LEAST_STEPS <= bound.steps < 5000 for bound in others.values())


def test_what_was_stopped_stops_the_others_after_as_many_steps() -> None:
    bounds = {run.name: bound for run, bound, _ in made(Budget(), 600, 0.1, status="stopped")}
    assert bounds[O0] == Bound(600)
    assert bounds[O0_TOGETHER] == Bound(300), "which share out the samples of 600"


def test_half_precision_that_is_many_times_slower_makes_fewer_steps() -> None:
    fast = {run.name: seconds for run, _, seconds in made(Budget(), 5000, 0.01)}
    budget = Budget()
    slow = {run.name: seconds for run, _, seconds in made(budget, 5000, 0.01, slower=19.0)}
    assert sum(slow.values()) <= FACTOR * fast[ORIGINAL] * 1.1
    assert fast.keys() == slow.keys()


def test_a_bound_is_one_that_a_second_measurement_gives_too() -> None:
    first, second = ([bound.steps for _, bound, _ in made(Budget(), 5000, pace)] for pace in (0.0100, 0.0103))
    assert first == second
    assert {str(steps).rstrip("0") for steps in first if steps} <= {"1", "2", "5"}


def test_no_run_makes_so_few_steps_that_its_checks_cannot_tell() -> None:
    budget = Budget()
    found = list(made(budget, 40, 0.01, before=30.0))
    assert all(bound.steps in (None, LEAST_STEPS) for _, bound, _ in found)
    (note,) = budget.notes()
    assert f"more than {FACTOR} times" in note and str(LEAST_STEPS) in note


def test_where_half_precision_is_only_emulated_a_run_in_it_makes_half_as_many() -> None:
    for slower, expected in ((1.2, LEAST_STEPS), (5.0, LEAST_SLOW_STEPS)):
        bounds = {run.name: bound for run, bound, _ in made(Budget(), 40, 0.01, before=30.0, slower=slower)}
        assert bounds["O2"].steps == bounds["O2"].least == expected
        assert bounds[ORIGINAL_AGAIN].steps == LEAST_STEPS


def test_where_gradients_are_accumulated_some_updates_are_made() -> None:
    bounds = {run.name: bound.steps for run, bound, _ in made(Budget(), 4000, 0.01, before=30.0, per_update=16)}
    assert bounds["O1"] == 16 * budgets.LEAST_UPDATES


def test_a_bound_that_was_asked_for_is_the_original_s() -> None:
    bounds = {run.name: bound.steps for run, bound, _ in made(Budget(100), 100, 0.5, status="stopped")}
    assert (bounds[ORIGINAL], bounds[O0], bounds[O0_TOGETHER]) == (100, 100, 50)
    few = {run.name: bound.steps for run, bound, _ in made(Budget(6), 6, 0.5, status="stopped")}
    assert set(few.values()) == {6}


def test_all_goes_to_the_end_where_that_is_asked_for() -> None:
    budget = Budget(full=True)
    assert {bound for _, bound, _ in made(budget, 5000, 0.1)} == {Bound()}
    assert list(budget.notes()) == []


def test_what_stands_still_is_ended_and_what_is_slow_is_not() -> None:
    budget = Budget()
    budget.expect(RUNS)
    assert budget.patience(RUNS[0]) is None, "nobody knows yet how long a step takes"
    budget.note(RUNS[0], trace_of(RUNS[0], 100, 3.0))
    together = next(run for run in RUNS if run.name == O0_TOGETHER)
    in_half = next(run for run in RUNS if run.name == "O1")
    assert (budget.patience(together) or 0) > 100
    assert budget.patience(in_half) is None
    budget.note(in_half, trace_of(in_half, 20, 60.0))
    assert (budget.patience(in_half) or 0) > 1000


def test_how_long_it_will_take_is_told() -> None:
    budget = Budget()
    budget.expect(RUNS)
    assert budget.going(RUNS[0], budget.bound(RUNS[0]), 3.0, 7) == Going(3.0, 7, None, None, None)
    budget.note(RUNS[0], trace_of(RUNS[0], 100, 0.1))
    run = next(run for run in RUNS if run.name == O0)
    going = budget.going(run, budget.bound(run), 5.0, 50)
    assert (going.made, going.of, going.left) == (50, 100, 5.0)
    assert going.later is not None and going.later > 10.0
    assert words_of(going) == f"50 of 100 steps, about 5 s left, then {going.later:.0f} s for the runs after it"
    assert words_of(Going(3.0)) == "3 s"
