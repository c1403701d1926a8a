"""What the checks of a verification make of recorded runs, on both sides of each bound."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from amp_migrate.verify.checks import CHECKS
from amp_migrate.verify.checks.band import Deviation, deviation
from amp_migrate.verify.checks.loaders import training_loaders
from amp_migrate.verify.evidence import Check, Evidence, from_json
from amp_migrate.verify.plan import (
    LOSS_SCALE,
    O0,
    O0_SCALED,
    O0_TOGETHER,
    O1_FP16,
    O1_TOGETHER,
    ORIGINAL,
    ORIGINAL_AGAIN,
    ORIGINAL_MERGED,
    ORIGINAL_TOGETHER,
    PLAIN_AMP,
    PLAIN_AMP_FP16,
    Asked,
)
from amp_migrate.verify.traces import Backward, Batch, Failure, RankTrace, Trace, Update
from amp_migrate.verify.verdict import judge, measured, needs_repeat
from hypothesis import given, settings
from hypothesis import strategies as st

ASKED = Asked("train.py", steps=20)
STEPS = 20
LOSSES = [2.0 / (1 + 0.1 * step) for step in range(STEPS)]
SITE = "train.py:40"
TALKING = ("process_group", "ddp")


def rank(losses: Sequence[float] = LOSSES, number: int = 0, **changes: object) -> RankTrace:
    """A process that makes a step with each loss, on batches of two samples, ten in an epoch."""
    site = changes.pop("site", SITE)
    backwards = tuple(Backward(loss, 0.1 * step, site=str(site), half=0, full=2) for step, loss in enumerate(losses))
    updates = tuple(Update(0, step + 1, loss / 2, 0.1) for step, loss in enumerate(losses))
    batches = tuple(
        read(step // 10, step, [order(step // 10, 2 * (step % 10) + one, 20) for one in range(2)], 10)
        for step in range(len(losses))
    )
    made = RankTrace(number, backwards, batches, updates, parameters=("00",), events=("amp",))
    return replace(made, **changes)


def read(epoch: int, step: int, indices: Sequence[int], length: int) -> Batch:
    """A batch of a loader over twenty samples."""
    found = tuple(indices)
    return Batch(0, epoch, step, found, length=length, size=20, data="Data/20#0", samples=found)


def order(epoch: int, place: int, whole: int = 10) -> int:
    """The sample at a place of a shuffled epoch."""
    return random.Random(epoch).sample(range(whole), whole)[place]


def in_half(made: RankTrace) -> RankTrace:
    return replace(made, backwards=tuple(replace(step, half=2, full=1) for step in made.backwards))


def scaled_by(made: RankTrace, factor: float = LOSS_SCALE) -> RankTrace:
    return replace(made, backwards=tuple(replace(step, scale=factor) for step in made.backwards))


def nearby(made: RankTrace, factor: float = 1.005) -> RankTrace:
    """A process whose losses are not far from those of another one."""
    return replace(made, backwards=tuple(replace(step, loss=step.loss * factor) for step in made.backwards))


def run(name: str, *ranks: RankTrace, level: str | None = "O0", **changes: object) -> Trace:
    made = Trace(name, level, len(ranks), "stopped", ranks, seconds=3.0)
    return replace(made, **changes)


def runs(*traces: Trace) -> dict[str, Trace]:
    """The runs of a script that is migrated rightly and repeats itself, but for those given."""
    original = next((trace for trace in traces if trace.name == ORIGINAL), run(ORIGINAL, rank(), level=None))
    usual = (
        original,
        run(O0, rank(site="train.py:44")),
        run(O0_SCALED, scaled_by(rank()), loss_scale=LOSS_SCALE),
        run(PLAIN_AMP, *(in_half(nearby(made)) for made in original.ranks), level=None),
        run("O1", in_half(rank([loss * 1.01 for loss in LOSSES])), level="O1"),
        replace(original, name=ORIGINAL_AGAIN),
    )
    return {trace.name: trace for trace in (*usual, *traces)}


def shared(count: int = 2, **changes: object) -> list[RankTrace]:
    """Processes that read ten samples of twenty each, in five batches of two, shuffled anew in each epoch."""
    made = []
    for number in range(count):
        batches = tuple(
            read(
                step // 5,
                step,
                [order(7 + step // 5, (2 * (step % 5) + one) * count + number, 10 * count) for one in range(2)],
                5,
            )
            for step in range(STEPS)
        )
        made.append(rank(number=number, **{"events": TALKING, "batches": batches, **changes}))
    return made


def merged(ranks: Sequence[RankTrace], losses: Sequence[float] = LOSSES, **changes: object) -> Trace:
    """One process on the samples of several."""
    batches = tuple(
        replace(row[0], indices=tuple(index for batch in row for index in batch.indices))
        for row in zip(*(one.batches for one in ranks), strict=True)
    )
    made = rank(losses, batches=batches)
    return run(ORIGINAL_MERGED, replace(made, **changes), level=None, batch_factor=len(ranks))


def several(*ranks: RankTrace) -> dict[str, Trace]:
    """The usual runs with one in several processes, and one process on the same samples."""
    return runs(run(O0_TOGETHER, *ranks), merged(ranks))


def found(traces: dict[str, Trace], asked: Asked = ASKED) -> dict[str, Check]:
    return {check.id: check for check in judge(asked, traces).checks}


def changed(step: int, losses: Sequence[float] = LOSSES, by: float = 1.5) -> list[float]:
    return [loss * by if number == step else loss for number, loss in enumerate(losses)]


# ---- all together ----------------------------------------------------------------------------------------------------


def test_a_right_migration_is_proved() -> None:
    evidence = judge(ASKED, several(*shared()))
    assert evidence.verdict == "proved"
    assert {check.verdict for check in evidence.checks} == {"proved"}, evidence.checks
    assert {check.id for check in evidence.checks} >= {
        *("runs", "o0-exact", "o0-scaled", "o1-band", "o1-half"),
        *("ranks-agree", "shares", "new-order", "one-process"),
    }
    assert "bit for bit" in evidence.summary


def test_evidence_can_be_written_and_read_again() -> None:
    evidence = judge(ASKED, several(*shared()))
    assert from_json(evidence.to_json()) == evidence
    assert json.loads(evidence.to_json())["verdict"] == "proved"


def test_ids_are_not_used_twice_and_every_check_is_described() -> None:
    evidence = judge(ASKED, several(*shared()))
    ids = [check.id for check in evidence.checks]
    assert len(ids) == len(set(ids))
    assert len({module.ID for module in CHECKS}) == len(CHECKS)
    assert all(module.__doc__ and len(module.__doc__.split()) > 30 for module in CHECKS)


def test_where_the_original_fails_nothing_is_proved_and_its_line_is_named() -> None:
    failure = Failure("KeyError: 'x'", Path("train.py"), 12, "y = d['x']")
    failed = run(ORIGINAL, level=None, status="failed", failure=failure)
    evidence = judge(ASKED, {ORIGINAL: failed})
    assert (evidence.verdict, evidence.checks) == ("unproved", ())
    assert "train.py:12" in evidence.summary and "KeyError: 'x'" in evidence.summary
    assert evidence.runs[0].error == "KeyError: 'x' at train.py:12"


def test_an_original_that_reaches_no_backward_call_proves_nothing() -> None:
    evidence = judge(ASKED, {ORIGINAL: run(ORIGINAL, replace(rank(), backwards=()), level=None)})
    assert evidence.verdict == "unproved"
    assert judge(ASKED, {}).verdict == "unproved"


def test_a_disproved_check_disproves_the_whole() -> None:
    evidence = judge(ASKED, runs(run("O1", rank(), level="O1")))
    assert evidence.verdict == "disproved"
    assert "o1-half" in evidence.summary


def test_a_stand_in_is_noted() -> None:
    evidence = judge(ASKED, runs(run(ORIGINAL, rank(stands_in=("apex",)), level=None)))
    assert any("apex is not installed" in note for note in evidence.notes)


# ---- o0-exact --------------------------------------------------------------------------------------------------------


def exact(migrated: RankTrace, original: RankTrace | None = None, *more: Trace) -> Check:
    original = original or rank()
    traces = runs(
        run(ORIGINAL, original, level=None), run(ORIGINAL_AGAIN, original, level=None), run(O0, migrated), *more
    )
    return found(traces)["o0-exact"]


losses = st.lists(st.floats(width=32), min_size=1, max_size=30)


@settings(deadline=None)
@given(losses)
def test_equal_runs_are_always_proved(values: list[float]) -> None:
    assert exact(rank(values), rank(values)).verdict == "proved"


@settings(deadline=None)
@given(losses, st.data())
def test_one_bit_in_one_loss_is_always_disproved(values: list[float], data: st.DataObject) -> None:
    step = data.draw(st.integers(0, len(values) - 1))
    other = math.nextafter(values[step], math.inf) if values[step] < math.inf else 0.0
    made, right = rank(values), rank(values)
    steps = list(made.backwards)
    steps[step] = replace(steps[step], loss=1.0 if math.isnan(other) else other)
    check = exact(replace(made, backwards=tuple(steps)), right)
    assert check.verdict == "disproved"
    assert f"step {step + 1} " in check.message


def test_the_first_difference_is_named_with_both_places_and_numbers() -> None:
    message = exact(replace(rank(changed(6)[:]), backwards=rank(changed(6), site="train.py:44").backwards)).message
    assert "train.py:40, in the migrated version train.py:44" in message
    assert "step 7" in message and f"{LOSSES[6]:.6g}" in message and f"{LOSSES[6] * 1.5:.6g}" in message


def test_a_loss_that_is_a_fourth_is_said_to_be() -> None:
    assert "It is 4 times smaller." in exact(rank([loss / 4 for loss in LOSSES])).message


def test_a_step_taken_twice_is_found() -> None:
    updates = rank().updates
    check = exact(rank(updates=(updates[0], *updates)))
    assert check.verdict == "disproved"
    assert "after step 1" in check.message.lower() and "step twice, in the original once" in check.message


def test_a_step_left_out_is_found() -> None:
    check = exact(rank(updates=rank().updates[:3] + rank().updates[4:]))
    assert (check.verdict, "not at all" in check.message) == ("disproved", True)


def test_an_original_that_computes_in_half_itself_cannot_be_repeated_in_float32() -> None:
    other = rank([loss * 1.001 for loss in LOSSES])
    before = run(ORIGINAL, in_half(rank()), level=None)
    assert found(runs(run(O0, other)))["o0-exact"].verdict == "disproved"
    assert found(runs(run(O0, other), before))["o0-exact"].verdict == "unproved"


def test_a_loss_scale_shows_nothing_where_the_script_computes_in_half_at_o0() -> None:
    alone, other = in_half(rank()), scaled_by(in_half(rank([loss * 1.001 for loss in LOSSES])))
    traces = runs(run(O0, alone), run(O0_SCALED, other, loss_scale=LOSS_SCALE))
    assert found(traces)["o0-scaled"].verdict == "unproved"


def test_a_version_without_levels_is_not_wrong_because_it_computes_in_half() -> None:
    other = in_half(rank([loss * 1.001 for loss in LOSSES]))
    assert found(runs(run(O0, replace(other, events=()))))["o0-exact"].verdict == "unproved"
    # The runtime does have levels.
    assert found(runs(run(O0, replace(other, events=("amp",)))))["o0-exact"].verdict == "disproved"


def test_another_gradient_norm_is_found_before_the_loss_that_follows_from_it() -> None:
    updates = tuple(replace(update, norm=update.norm * 2) for update in rank().updates)
    check = exact(rank(changed(1), updates=updates))
    assert "norm" in check.message and "after step 1" in check.message


def test_optimizers_that_step_in_another_order_are_found() -> None:
    first = [update for step in rank().updates for update in (step, replace(step, optimizer=1))]
    second = [*first[:2], first[3], first[2], *first[4:]]
    check = exact(rank(updates=tuple(second)), rank(updates=tuple(first)))
    assert (check.verdict, "another order" in check.message) == ("disproved", True)


def test_optimizers_may_be_made_in_another_order() -> None:
    updates = tuple(replace(update, optimizer=5) for update in rank().updates)
    assert exact(rank(updates=updates)).verdict == "proved"


def test_fewer_steps_are_found() -> None:
    traces = runs(run(O0, rank(LOSSES[:-1]), status="ended"))
    check = found(traces)["o0-exact"]
    assert (check.verdict, "19 backward calls, in the original 20" in check.message) == ("disproved", True)


def test_parameters_that_differ_at_the_end_are_found() -> None:
    assert exact(rank(parameters=("01",))).verdict == "disproved"


def test_an_original_that_does_not_repeat_itself_disproves_nothing() -> None:
    traces = runs(run(O0, rank(changed(4))), run(ORIGINAL_AGAIN, rank(changed(9)), level=None))
    check = found(traces)["o0-exact"]
    assert check.verdict == "unproved"
    assert "step 5" in check.message and "step 10" in check.message
    assert judge(ASKED, traces).verdict == "unproved"


def test_an_original_of_which_it_is_not_known_disproves_nothing() -> None:
    traces = runs(run(O0, rank(changed(4))))
    del traces[ORIGINAL_AGAIN]
    assert found(traces)["o0-exact"].verdict == "unproved"


def again(*losses: float, **changes: object) -> Trace:
    """A second run of the original with these losses."""
    return run(ORIGINAL_AGAIN, rank(losses), level=None, **changes)


def test_a_difference_that_a_part_did_not_reach_calls_for_a_whole_second_run() -> None:
    part = again(*LOSSES[:5])
    assert not needs_repeat(runs(part))
    assert not needs_repeat(runs(part, run(O0, rank(changed(4)))))
    assert needs_repeat(runs(part, run(O0, rank(changed(5)))))
    assert needs_repeat(runs(part, run(O0_SCALED, scaled_by(rank(changed(8))))))
    assert needs_repeat(runs(part, run(O0, rank(parameters=("01",)))))
    assert not needs_repeat(runs(again(*LOSSES, status="ended"), run(O0, rank(parameters=("01",)))))


# ---- repeats ---------------------------------------------------------------------------------------------------------


def test_a_script_that_differs_from_itself_is_named_first() -> None:
    evidence = judge(ASKED, runs(again(*changed(9))))
    assert (evidence.checks[0].id, evidence.checks[0].verdict) == ("repeats", "unproved")
    assert "step 10" in evidence.checks[0].message and "step 10" not in evidence.checks[1].message
    assert evidence.verdict == "unproved"


def test_a_second_run_that_was_stopped_earlier_tells_as_far_as_it_goes() -> None:
    assert found(runs(again(*LOSSES[:5])))["repeats"].verdict == "proved"
    assert "5 backward calls" in found(runs(again(*LOSSES[:5])))["repeats"].message
    assert found(runs(again(*changed(4)[:5])))["repeats"].verdict == "unproved"


def test_a_second_run_that_ends_earlier_by_itself_is_another_one() -> None:
    assert found(runs(again(*LOSSES[:5], status="ended")))["repeats"].verdict == "unproved"


def test_a_second_run_that_does_not_get_through_leaves_it_open() -> None:
    assert found(runs(again(*LOSSES[:5], status="timeout")))["repeats"].verdict == "unproved"


# ---- o0-scaled -------------------------------------------------------------------------------------------------------


def scaled(made: RankTrace, asked: Asked = ASKED, **changes: object) -> Check | None:
    return found(runs(run(O0_SCALED, made, loss_scale=LOSS_SCALE, **changes)), asked).get("o0-scaled")


def with_norms(made: RankTrace, factor: float) -> RankTrace:
    return replace(made, updates=tuple(replace(update, norm=update.norm * factor) for update in made.updates))


def test_a_step_on_scaled_gradients_is_found() -> None:
    check = scaled(with_norms(scaled_by(rank()), LOSS_SCALE))
    assert (check.verdict, "still scaled" in check.message) == ("disproved", True)


def test_gradients_clipped_before_they_are_unscaled_are_found() -> None:
    check = scaled(with_norms(scaled_by(rank()), 0.3 / LOSS_SCALE))
    assert (check.verdict, "amp.scaler.unscale_(optimizer)" in check.message) == ("disproved", True)


def test_a_loss_that_is_not_scaled_is_found_with_its_place() -> None:
    check = scaled(with_norms(rank(site="train.py:44"), 1 / LOSS_SCALE))
    assert check.verdict == "disproved"
    assert "train.py:44 is not scaled" in check.message


def test_a_loss_that_is_not_scaled_and_not_unscaled_either_shows_nothing() -> None:
    assert scaled(rank()).verdict == "unproved"
    assert scaled(rank(), replace(ASKED, precision="already")) is None


def test_one_of_two_losses_left_unscaled_without_consequence_is_named() -> None:
    steps = scaled_by(rank()).backwards
    mixed = (*(replace(step, scale=1.0, site="train.py:50") for step in steps[:3]), *steps[3:])
    check = scaled(rank(backwards=mixed))
    assert (check.verdict, "train.py:50 is not scaled" in check.message) == ("proved", True)


@pytest.mark.parametrize(("apart", "verdict"), [(2.0**-21, "unproved"), (2.0**-19, "disproved")])
def test_rounding_below_the_normal_range_is_told_from_a_mistake(apart: float, verdict: str) -> None:
    assert scaled(with_norms(scaled_by(rank()), 1 + apart)).verdict == verdict


def test_an_overflow_by_the_scale_shows_nothing() -> None:
    assert scaled(scaled_by(rank(changed(3, by=math.inf)))).verdict == "unproved"
    assert scaled(replace(scaled_by(rank(changed(3))), skipped=1)).verdict == "unproved"


# ---- levels ----------------------------------------------------------------------------------------------------------


def level(values: Sequence[float], original: Sequence[float] = LOSSES, **changes: object) -> Check:
    made = replace(in_half(rank(values)), **changes)
    return found(runs(run(ORIGINAL, rank(original), level=None), run("O1", made, level="O1")))["o1-band"]


FLAT = [1.0] * STEPS


@pytest.mark.parametrize(("factor", "verdict"), [(1.049, "proved"), (1.056, "disproved"), (0.949, "disproved")])
def test_the_band_is_as_wide_as_the_tolerance(factor: float, verdict: str) -> None:
    assert level([loss * factor for loss in FLAT], FLAT).verdict == verdict


def test_single_losses_may_leave_the_band_if_their_mean_does_not() -> None:
    values = [loss * (1.1 if step % 2 else 0.9) for step, loss in enumerate(FLAT)]
    assert level(values, FLAT).verdict == "proved"


def test_a_loss_that_goes_to_zero_is_measured_by_what_it_was() -> None:
    right = [math.exp(-step) for step in range(STEPS)]
    assert level([*right[:10], *(10 * loss for loss in right[10:])], right).verdict == "proved"
    assert level([loss + 0.2 for loss in right], right).verdict == "disproved"


def test_a_loss_of_both_signs_is_measured_by_its_size() -> None:
    right = [-0.5 + 0.05 * step for step in range(STEPS)]
    assert level([loss + 0.005 for loss in right], right).verdict == "proved"
    assert level([loss + 0.2 for loss in right], right).verdict == "disproved"


def test_what_scatter_explains_is_not_disproved() -> None:
    right = [1.0 + (0.5 if step % 2 else -0.5) for step in range(STEPS)]
    assert level([loss * 1.2 for loss in right], right).verdict == "unproved"
    assert level([loss * 3 for loss in right], right).verdict == "disproved"


@pytest.mark.parametrize(
    ("plain", "verdict"),
    [
        ([1.0] * STEPS, "disproved"),
        ([1.0] * 10, "unproved"),  # what comes later it does not know
        ([1.0] * 5 + [1.5] * 5, "unproved"),
        ([1.0] * 5 + [2.5] * 7, "proved"),
    ],
)
def test_a_level_is_held_against_plain_autocast_as_far_as_that_went(plain: Sequence[float], verdict: str) -> None:
    values = [1.0] * 10 + [2.0] * (STEPS - 10)
    reference = run(PLAIN_AMP, rank(plain), level=None, status="stopped")
    made = run("O1", in_half(rank(values)), level="O1")
    traces = runs(run(ORIGINAL, rank(FLAT), level=None), made, reference)
    assert found(traces)["o1-band"].verdict == verdict


@pytest.mark.parametrize(
    ("alike", "updates", "verdict"), [(20, 60, "proved"), (19, 60, "unproved"), (20, 4, "unproved")]
)
def test_a_level_that_begins_as_plain_autocast_may_part_where_that_parts_from_the_original(
    alike: int, updates: int, verdict: str
) -> None:
    original, begun = [1.0] * 60, [1.0] * (alike - 1) + [1.01]
    plain = rank([*begun, *[1.3] * (60 - alike)])
    reference = run(PLAIN_AMP, replace(plain, updates=plain.updates[:updates]), level=None)
    made = run("O1", in_half(rank([*begun, *[2.0] * (60 - alike)])), level="O1")
    assert found(runs(run(ORIGINAL, rank(original), level=None), made, reference))["o1-band"].verdict == verdict


def test_each_backward_call_is_judged_on_its_own_curve() -> None:
    """A small loss beside a large one: its doubling would not show in their mean."""
    right = tuple(
        Backward(100.0 if step % 2 else 0.1, step, site=f"train.py:{40 + step % 2}", half=1) for step in range(40)
    )
    other = tuple(step if step.loss > 1 else replace(step, loss=0.2) for step in right)
    where = deviation(right, other)
    assert where is not None and where.size == pytest.approx(1.0)
    assert where.farthest.where == "train.py:40"


def test_lines_that_moved_are_the_same_backward_calls() -> None:
    right = tuple(Backward(1.0 + step % 2, step, site=f"train.py:{40 + step % 2}") for step in range(20))
    other = tuple(replace(step, site=f"train.py:{60 + number % 2}") for number, step in enumerate(right))
    assert deviation(right, other).size == 0


def test_a_loss_that_is_not_finite_is_disproved_unless_it_was_skipped() -> None:
    values = changed(4, by=math.nan)
    assert level(values).verdict == "disproved"
    assert "step 5" in level(values).message
    assert level(values, skipped=1).verdict == "proved"
    assert level(values, values).verdict == "proved"


def test_an_original_without_finite_losses_cannot_be_compared_with() -> None:
    assert level([math.nan] * STEPS, [math.nan] * STEPS).verdict == "unproved"


def test_the_largest_deviation_is_said_with_its_place() -> None:
    values = [*FLAT[:10], *(1.04 for _ in range(10))]
    assert "4 %" in level(values, FLAT).message and SITE in level(values, FLAT).message


FALLING = [5.0, 3.0, 1.0, 0.9, 1.1, 1.0, 0.9, 1.1]


def apart(right: Sequence[float], other: Sequence[float]) -> Deviation:
    steps = [tuple(Backward(loss, at, site=SITE) for at, loss in enumerate(losses)) for losses in (right, other)]
    where = deviation(*steps)
    assert where is not None
    return where


def test_the_distance_that_is_said_is_the_largest_that_the_table_of_losses_holds() -> None:
    """A large loss scatters less by its size: what scatter leaves of the distance is the largest there."""
    where = apart(FALLING, [5.0001, *FALLING[1:-1], FALLING[-1] + 0.0102])
    assert (where.farthest.step, where.unexplained.step) == (8, 1)
    assert str(where) == f"by 0.58 %, at step 8 ({SITE})"


def test_where_scatter_explains_the_least_is_said_besides_the_largest_distance() -> None:
    where = apart(FALLING, [8.0, *FALLING[1:-1], FALLING[-1] + 1.2])
    assert (where.farthest.step, where.unexplained.step) == (8, 1)
    assert "by 69 %, at step 8" in str(where) and "largest at step 1, " in str(where)


def test_single_losses_are_said_where_a_mean_hides_them() -> None:
    said = level([1.0] * 10 + [1.04] + [1.0] * 9, FLAT).message
    assert "by 1 %, at step" in said and "single losses by up to 4 %, at step 11" in said


def test_nothing_is_explained_by_scatter_that_leaves_the_tolerance() -> None:
    """A distance beyond the tolerance is none within it, though scatter explains it."""
    assert level([5.0001, *FALLING[1:-1], FALLING[-1] + 0.12], FALLING).verdict == "unproved"


def half(*steps: Backward, asked: Asked = ASKED) -> Check | None:
    return found(runs(run("O1", rank(backwards=steps), level="O1")), asked).get("o1-half")


def test_where_an_argument_did_not_turn_precision_on_nothing_is_said_of_it() -> None:
    off = run("O1", rank(events=()), level="O1")
    assert found(runs(off))["o1-half"].verdict == "unproved"


def test_an_original_that_went_on_without_a_part_of_apex_is_not_compared_with() -> None:
    traces = runs(run(ORIGINAL, rank(changed(3), events=("lacks apex.fp16_utils",)), level=None))
    traces |= {ORIGINAL_AGAIN: replace(traces[ORIGINAL], name=ORIGINAL_AGAIN)}
    check = found(traces)["o0-exact"]
    assert check.verdict == "unproved"
    assert "without apex.fp16_utils" in check.message


def test_a_distribution_of_the_script_itself_is_left_to_it_where_it_needs_another_launch() -> None:
    ranks = [rank(number=number, events=(*TALKING, "batch_norm")) for number in range(2)]
    apart = run(ORIGINAL_TOGETHER, rank(), rank(number=1), level=None)
    checks = found(several(*ranks) | {apart.name: apart}, replace(ASKED, distribution="already"))
    assert checks["together-exact"].verdict == "unproved"
    assert checks["ranks-agree"].verdict == "proved"
    assert not {"shares", "new-order", "sync-bn", "one-process"} & set(checks)
    assert found(several(*ranks))["shares"].verdict == "disproved"


def test_a_backward_call_without_anything_in_half_is_found() -> None:
    first, second = Backward(1.0, 0.0, site="a.py:1", half=3, full=2), Backward(1.0, 0.1, site="a.py:2", full=4)
    check = half(first, second)
    assert check.verdict == "disproved"
    assert "a.py:2" in check.message and "a.py:1" not in check.message
    assert half(first, second, asked=replace(ASKED, precision="already")) is None


def test_some_layers_in_float32_are_said_and_allowed() -> None:
    check = half(Backward(1.0, 0.0, site="a.py:1", half=3, full=1))
    assert (check.verdict, "75 % of the products behind a.py:1" in check.message) == ("proved", True)


def test_a_model_without_products_shows_nothing() -> None:
    assert half(Backward(1.0, 0.0, site="a.py:1")).verdict == "unproved"


# ---- runs ------------------------------------------------------------------------------------------------------------


def stopped(name: str, message: str, status: str = "failed", seconds: float = 3.0) -> Check:
    failure = Failure(message, Path("train.py"), 31, "x")
    trace = run(name, status=status, failure=failure, processes=2, seconds=seconds)
    return found(runs(replace(trace, ranks=())))["runs"]


def test_a_run_that_fails_where_the_original_does_not_is_disproved_with_its_line() -> None:
    check = stopped("O1", "RuntimeError: expected Float")
    assert check.verdict == "disproved"
    assert "train.py:31" in check.message and "expected Float" in check.message


@pytest.mark.parametrize("message", ["RuntimeError: CUDA out of memory", "OSError: [Errno 28] No space left on device"])
def test_what_the_machine_cannot_do_disproves_nothing(message: str) -> None:
    assert stopped("O1", message).verdict == "unproved"


NO_KERNEL = "RuntimeError: could not create a primitive descriptor for an LSTM forward propagation primitive"


def failed(name: str, message: str, **changes: object) -> Trace:
    usual = {"level": "O1", "status": "failed", "processes": 1, "failure": Failure(message)}
    return run(name, **{**usual, **changes})


def test_what_torch_lacks_in_half_on_this_device_disproves_nothing() -> None:
    """The bfloat16 LSTM needs AVX-512, and no list has torch's words for that."""
    plain = failed(PLAIN_AMP, NO_KERNEL, level=None)
    check = found(runs(plain, failed("O1", NO_KERNEL)))["runs"]
    assert (check.verdict, "torch's own autocast" in check.message) == ("unproved", True)
    assert found(runs(failed("O1", NO_KERNEL)))["runs"].verdict == "disproved"
    assert found(runs(plain, failed(O0, NO_KERNEL, level="O0")))["runs"].verdict == "disproved"
    assert found(runs(plain, failed("O1", "NameError: name 'amp' is not defined")))["runs"].verdict == "disproved"


def test_a_level_may_call_in_half_what_autocast_does_not() -> None:
    message = "RuntimeError: \"cdist\" not implemented for 'BFloat16'"
    assert found(runs(failed("O2", message, level="O2")))["runs"].verdict == "unproved"
    assert found(runs(failed("O1", message)))["runs"].verdict == "disproved"


@pytest.mark.parametrize("name", [O1_FP16, "O1"])
def test_a_type_in_which_plain_autocast_fails_is_left_out_where_it_is_besides(name: str) -> None:
    plain = failed(PLAIN_AMP_FP16, "RuntimeError: value cannot be converted", level=None, half_type="fp16")
    traces = runs(plain, failed(name, "RuntimeError: value cannot be converted", half_type="fp16"))
    evidence = judge(ASKED, traces)
    left_out = name == O1_FP16
    assert {check.id: check for check in evidence.checks}["runs"].verdict == ("proved" if left_out else "unproved")
    assert any("float16" in note for note in evidence.notes) == left_out
    assert found(runs(failed(name, "RuntimeError: value", half_type="fp16")))["runs"].verdict == "disproved"


def out_of_time(seconds: float, *ranks: RankTrace, name: str = O0_TOGETHER, idle: float = 20.0) -> Check:
    ranks = ranks or (rank(LOSSES[:3]),) * 2
    trace = run(name, *ranks, status="timeout", seconds=seconds, failure=Failure("late"), idle=idle)
    return found(runs(trace))["runs"]


@pytest.mark.parametrize(("seconds", "verdict"), [(44.0, "unproved"), (45.0, "disproved")])
def test_processes_that_wait_for_each_other_are_told_from_slow_ones(seconds: float, verdict: str) -> None:
    """One process alone needs 1.1 seconds after its last step, and 0.1 for each step."""
    check = out_of_time(seconds)
    assert (check.verdict, "wait for each other" in check.message) == (verdict, verdict == "disproved")
    assert out_of_time(seconds, idle=0.0).verdict == "unproved", "one of them may evaluate"


def test_processes_that_still_train_when_their_time_is_up_are_slow() -> None:
    last = rank().backwards[:5]
    slow = rank(backwards=(*last, replace(last[-1], time=590.0)))
    assert out_of_time(600.0, rank(LOSSES[:3]), slow).verdict == "unproved"
    assert out_of_time(700.0, rank(LOSSES[:3]), slow).verdict == "disproved"


def test_one_process_hangs_by_what_the_original_takes() -> None:
    assert out_of_time(21.0, rank(LOSSES[:1]), name=O0).verdict == "unproved"
    assert out_of_time(23.0, rank(LOSSES[:1]), name=O0).verdict == "disproved"


def test_a_package_that_is_not_installed_is_no_fault_of_the_migration() -> None:
    lacks = "ModuleNotFoundError: No module named '%s' (install it for /usr/bin/python, where the script runs)"
    check = found(runs(failed("O1", lacks % "timm")))["runs"]
    assert check.verdict == "unproved" and "The package timm is not installed" in check.message
    for name in ("amp_runtime", "torch", "timm.models.gone"):
        assert found(runs(failed("O1", lacks % name)))["runs"].verdict == "disproved"


def test_where_one_process_did_not_get_through_several_are_not_said_to_hang() -> None:
    one = [failed(name, "x", level="O0", status="timeout", seconds=0.0) for name in (O0, ORIGINAL_TOGETHER)]
    trace = run(O1_TOGETHER, rank(), rank(), level="O1", status="timeout", seconds=9e9, failure=Failure("late"))
    plain, alone = failed(PLAIN_AMP, "x", level=None), failed("O1", "x")
    assert "O1, together (2 processes) failed" in (message := found(runs(*one, trace, plain, alone))["runs"].message)
    assert "wait for each other" not in message


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize(("allowed", "verdict"), [(550, "unproved"), (650, "disproved")])
def test_memory_is_judged_by_what_one_process_takes(allowed: int, verdict: str, killed: bool) -> None:
    message = "it was killed by SIGKILL; the system may have been out of memory" if killed else "it took more"
    trace = run(
        O0_TOGETHER,
        *(rank(), rank()),
        status="failed" if killed else "memory",
        failure=Failure(message),
        allowed_memory=allowed,
    )
    assert found(runs(trace, run(O0, rank(peak_memory=100))))["runs"].verdict == verdict
    assert found(runs(trace))["runs"].verdict == "unproved"
    on_gpu = run(O0, rank(peak_memory=100, device="GPU"))
    assert found(runs(trace, on_gpu))["runs"].verdict == "unproved"


def test_where_the_processes_stood_is_told_where_nothing_else_is_known() -> None:
    ranks = (rank(LOSSES[:3]), rank(LOSSES[:3], 1, site="train.py:52"))
    killed = run(O0_TOGETHER, *ranks, status="failed", failure=Failure("it was killed by SIGABRT"))
    words = "The last backward call of rank 0 was at train.py:40, of rank 1 at train.py:52."
    assert words in found(runs(killed))["runs"].message
    with_a_line = replace(killed, failure=Failure("RuntimeError: x", Path("train.py"), 31))
    assert words not in found(runs(with_a_line))["runs"].message


def test_a_process_that_is_killed_otherwise_is_disproof() -> None:
    assert stopped(O0_TOGETHER, "it was killed by SIGSEGV").verdict == "disproved"


# ---- several processes -----------------------------------------------------------------------------------------------


def test_processes_that_do_not_talk_are_not_judged_as_several() -> None:
    checks = found(several(*shared(events=())))
    assert not {"ranks-agree", "shares", "new-order", "one-process"} & set(checks)


def test_parameters_that_differ_between_processes_are_found() -> None:
    first, second = shared()
    check = found(several(first, replace(second, parameters=("ff",))))["ranks-agree"]
    assert check.verdict == "disproved"
    second = with_norms(replace(second, parameters=("ff",)), 1.1)
    assert "optimizer step 1 " in found(several(first, second))["ranks-agree"].message


def test_parts_of_the_parameters_differ_between_processes() -> None:
    first, second = shared()
    ranks = [replace(rank, events=(*rank.events, "sharded")) for rank in (first, replace(second, parameters=("ff",)))]
    check = found(several(*ranks))["ranks-agree"]
    assert check.verdict == "proved" and "its own part" in check.message
    fewer = replace(ranks[1], updates=ranks[1].updates[:-1])
    assert found(several(ranks[0], fewer))["ranks-agree"].verdict == "disproved"


def test_processes_with_different_numbers_of_steps_are_found() -> None:
    first, second = shared()
    fewer = replace(second, backwards=second.backwards[:-1], batches=second.batches[:-1])
    traces = runs(run(O0_TOGETHER, first, fewer))
    assert found(traces)["ranks-agree"].verdict == "disproved"


def test_the_same_samples_on_all_processes_are_found() -> None:
    first, second = shared()
    check = found(several(first, replace(second, batches=first.batches)))["shares"]
    assert (check.verdict, "amp.prepare_loader" in check.message) == ("disproved", True)


def test_shares_that_overlap_are_found() -> None:
    """Each process shuffles the whole by itself."""
    first, second = shared()
    assert found(several(first, replace(second, batches=rank().batches)))["shares"].verdict == "disproved"


def test_a_last_batch_may_repeat_samples_and_another_may_not() -> None:
    first, second = shared()
    last, early = list(second.batches), list(second.batches)
    last[4] = replace(last[4], indices=(first.batches[0].indices[0], last[4].indices[1]))
    assert found(several(first, replace(second, batches=tuple(last))))["shares"].verdict == "proved"
    early[3] = replace(early[3], indices=(first.batches[0].indices[0], early[3].indices[1]))
    assert found(several(first, replace(second, batches=tuple(early))))["shares"].verdict == "disproved"


def test_one_sample_in_more_than_a_hundred_may_repeat_by_chance() -> None:
    def reading(start: int, count: int) -> tuple[Batch, ...]:
        return tuple(Batch(0, 0, step, tuple(range(start + 8 * step, start + 8 * step + 8))) for step in range(count))

    first, second = shared()
    again = list(reading(1000, STEPS))
    again[3] = replace(again[3], indices=(0, *again[3].indices[1:]))
    ranks = replace(first, batches=reading(0, STEPS)), replace(second, batches=tuple(again))
    assert found(several(*ranks))["shares"].verdict == "unproved"
    again[4] = replace(again[4], indices=(*range(1, 5), *again[4].indices[4:]))
    ranks = ranks[0], replace(second, batches=tuple(again))
    assert found(several(*ranks))["shares"].verdict == "disproved"


def test_a_sampler_without_end_begins_anew_on_the_processes_before_it_does_in_the_original() -> None:
    passes = [order(epoch, place, 40) for epoch in range(2) for place in range(40)]
    ranks = [
        rank(
            number=number,
            events=TALKING,
            batches=tuple(
                Batch(0, 0, step, (passes[4 * step + number], passes[4 * step + number + 2])) for step in range(STEPS)
            ),
        )
        for number in range(2)
    ]
    alone = tuple(Batch(0, 0, step, (passes[2 * step], passes[2 * step + 1])) for step in range(STEPS))
    traces = runs(run(ORIGINAL, rank(batches=alone), level=None), run(O0_TOGETHER, *ranks))
    assert found(traces)["shares"].verdict == "proved"


def test_sampling_with_replacement_is_judged_by_equal_orders_only() -> None:
    def drawn(seed: int) -> tuple[Batch, ...]:
        numbers = random.Random(seed)
        return tuple(Batch(0, step // 5, step, tuple(numbers.choices(range(6), k=2))) for step in range(STEPS))

    first, second = (replace(one, batches=drawn(one.rank)) for one in shared())
    original = run(ORIGINAL, rank(batches=drawn(5)), level=None)
    traces = several(first, second) | {ORIGINAL: original}
    assert found(traces)["shares"].verdict == "proved"
    traces = several(first, replace(second, batches=first.batches)) | {ORIGINAL: original}
    assert found(traces)["shares"].verdict == "disproved"


def test_without_indices_equal_losses_tell_that_the_data_is_the_same() -> None:
    first, second = shared(batches=())
    assert found(several(first, second))["shares"].verdict == "disproved"
    other = replace(second, backwards=rank(changed(3)).backwards)
    assert found(several(first, other))["shares"].verdict == "unproved"


def test_equal_losses_say_nothing_of_a_script_that_gathers_by_itself() -> None:
    traces = several(*shared(batches=())) | {ORIGINAL: run(ORIGINAL, rank(events=("process_group",)), level=None)}
    assert found(traces)["shares"].verdict == "unproved"


def test_a_loader_that_only_evaluates_is_no_training_loader() -> None:
    batches = [*rank().batches]
    for step in (0, 5, 10, 15):
        batches += [Batch(1, step // 5, step, (index,)) for index in range(4)]
    made = rank(batches=tuple(sorted(batches, key=lambda batch: (batch.before, -batch.loader))))
    assert training_loaders(made) == [0]
    # Also where the evaluation comes between the batch and its step.
    made = rank(batches=tuple(sorted(batches, key=lambda batch: (batch.before, batch.loader))))
    assert training_loaders(made) == [0]


def test_two_loaders_that_take_turns_are_both_training_loaders() -> None:
    batches = tuple(Batch(step % 2, 0, step, (step,)) for step in range(STEPS))
    assert training_loaders(rank(batches=batches)) == [0, 1]


def test_two_epochs_that_are_alike_by_chance_are_no_order() -> None:
    first, second = shared()
    alike = [*first.batches[:10], *(replace(batch, epoch=2) for batch in first.batches[5:10]), *first.batches[15:]]
    one = replace(first, batches=tuple(replace(batch, before=step) for step, batch in enumerate(alike)))
    assert found(several(one, second))["new-order"].verdict == "proved"


def test_an_order_that_never_changes_is_found_where_the_originals_does() -> None:
    first, second = (
        replace(one, batches=tuple(replace(batch, epoch=step // 5) for step, batch in enumerate(one.batches[:5] * 4)))
        for one in shared()
    )
    first, second = (
        replace(one, batches=tuple(replace(batch, before=step) for step, batch in enumerate(one.batches)))
        for one in (first, second)
    )
    check = found(several(first, second))["new-order"]
    assert (check.verdict, "set_epoch" in check.message) == ("disproved", True)
    original = run(ORIGINAL, rank(batches=first.batches), level=None)
    assert "new-order" not in found(several(first, second) | {ORIGINAL: original})


def test_a_single_epoch_of_the_original_has_no_order_to_compare() -> None:
    batches = tuple(Batch(0, 0, step, (2 * step, 2 * step + 1)) for step in range(STEPS))
    traces = several(*shared()) | {ORIGINAL: run(ORIGINAL, rank(batches=batches), level=None)}
    assert "new-order" not in found(traces)


def test_a_single_epoch_of_the_processes_leaves_the_order_open() -> None:
    batches = tuple(Batch(0, 0, step, (2 * step, 2 * step + 1)) for step in range(STEPS))
    assert found(several(*shared(batches=batches)))["new-order"].verdict == "unproved"


# ---- sync-bn ---------------------------------------------------------------------------------------------------------

WITH_BN = run(ORIGINAL, rank(events=("batch_norm",)), level=None)


def test_a_model_converted_after_it_was_wrapped_is_found() -> None:
    traces = several(*shared(events=(*TALKING, "sync_bn", "sync_bn_after_ddp")))
    assert found(traces)["sync-bn"].verdict == "disproved"


def test_synchronised_batch_norm_is_proved_and_a_model_without_any_not_mentioned() -> None:
    traces = several(*shared(events=(*TALKING, "sync_bn")))
    assert "sync-bn" not in found(traces)
    assert found(traces | {ORIGINAL: WITH_BN})["sync-bn"].verdict == "proved"


@pytest.mark.parametrize(("factor", "verdict"), [(1.06, "disproved"), (1.04, "unproved")])
def test_batch_norm_that_is_not_synchronised_is_judged_by_its_effect(factor: float, verdict: str) -> None:
    ranks = shared(events=(*TALKING, "batch_norm"))
    one = merged(ranks, [loss * factor for loss in LOSSES])
    traces = runs(WITH_BN, run(O0_TOGETHER, *ranks), one)
    assert found(traces)["sync-bn"].verdict == verdict
    # The losses need to agree on average only.
    assert "batch norm" in found(traces)["one-process"].message


def test_batch_norm_that_is_not_to_be_synchronised_is_no_mistake() -> None:
    ranks = shared(events=(*TALKING, "batch_norm"))
    traces = runs(WITH_BN, run(O0_TOGETHER, *ranks), merged(ranks, [loss * 1.5 for loss in LOSSES]))
    assert found(traces, replace(ASKED, sync_bn=False))["sync-bn"].verdict == "unproved"


def test_a_script_with_its_own_distribution_keeps_its_own_batch_norm() -> None:
    original = run(ORIGINAL, rank(events=("batch_norm", "ddp")), level=None)
    assert "sync-bn" not in found(several(*shared(events=(*TALKING, "batch_norm"))) | {ORIGINAL: original})


# ---- one-process -----------------------------------------------------------------------------------------------------


def one_process(one: Sequence[float] = LOSSES, original: Sequence[float] = LOSSES, **changes: object) -> Check:
    """The usual processes beside one with these losses; ``changes`` are of that one."""
    ranks = shared()
    traces = runs(run(ORIGINAL, rank(original), level=None), run(O0_TOGETHER, *ranks), merged(ranks, one, **changes))
    return found(traces)["one-process"]


def later(step: int, factor: float) -> list[float]:
    return [loss if number < step else loss * factor for number, loss in enumerate(LOSSES)]


@pytest.mark.parametrize(
    ("step", "factor", "verdict"),
    [
        (0, 1 + 5e-5, "proved"),
        (0, 1 + 2e-3, "unproved"),
        (1, 1 + 5e-4, "proved"),
        (1, 1 + 2e-3, "unproved"),
        (4, 1.04, "proved"),
        (4, 1.4, "disproved"),
    ],
)
def test_losses_of_one_process_are_equal_at_first_and_near_later(step: int, factor: float, verdict: str) -> None:
    updates = rank().updates
    assert one_process(later(step, factor), updates=updates).verdict == verdict


def test_a_loss_divided_by_the_number_of_processes_is_found() -> None:
    check = one_process([2 * loss for loss in LOSSES], [2 * loss for loss in LOSSES])
    assert (check.verdict, "divided by the number of processes" in check.message) == ("disproved", True)


def test_a_loss_that_is_a_sum_over_samples_is_not_taken_for_that() -> None:
    check = one_process([2 * loss for loss in LOSSES])
    assert (check.verdict, "sum over the samples" in check.message) == ("unproved", True)


@pytest.mark.parametrize(
    ("moved", "losses", "verdict"),
    [
        (0.1, LOSSES, "proved"),
        (0.2, LOSSES, "unproved"),  # as far as its gradients are large
        (None, LOSSES, "unproved"),
        (0.1, [loss * 1.1**step for step, loss in enumerate(LOSSES)], "unproved"),
    ],
)
def test_a_sum_over_samples_trains_alike_where_steps_do_not_depend_on_its_size(
    moved: float | None, losses: Sequence[float], verdict: str
) -> None:
    ranks = shared(updates=tuple(replace(update, moved=0.1) for update in rank().updates))
    updates = tuple(replace(update, moved=moved, norm=2 * update.norm) for update in rank().updates)
    one = merged(ranks, [2 * loss for loss in losses], updates=updates)
    traces = runs(run(ORIGINAL, rank(), level=None), run(O0_TOGETHER, *ranks), one)
    assert found(traces)["one-process"].verdict == verdict


def test_a_loss_multiplied_by_the_number_of_processes_is_found() -> None:
    assert one_process([loss / 2 for loss in LOSSES]).verdict == "disproved"


@pytest.mark.parametrize(("factor", "words"), [(0.5, "summed"), (2.0, "divided")])
def test_gradients_that_are_no_average_are_found(factor: float, words: str) -> None:
    check = one_process(updates=with_norms(rank(), factor).updates)
    assert (check.verdict, words in check.message) == ("disproved", True)


@pytest.mark.parametrize(
    ("other", "verdict", "words"), [(1.1, "disproved", "not averaged"), (1.0, "unproved", "weights or pads")]
)
def test_gradients_are_not_averaged_where_each_process_has_its_own(other: float, verdict: str, words: str) -> None:
    # Behind a layer of zeros all samples have the same loss, and a loss that weights them has other gradients still.
    first, second = shared()
    ranks = [first, with_norms(second, other)]
    one = merged(ranks, LOSSES, updates=with_norms(rank(), 1.3).updates)
    check = found(runs(run(O0_TOGETHER, *ranks), one))["one-process"]
    assert (check.verdict, words in check.message) == (verdict, True)


def test_another_learning_rate_is_found() -> None:
    updates = tuple(replace(update, lr=0.05) for update in rank().updates)
    check = one_process(updates=updates)
    assert check.verdict == "disproved"
    assert "0.1" in check.message and "0.05" in check.message


def test_from_where_a_schedule_is_elsewhere_nothing_is_compared() -> None:
    updates = tuple(replace(update, lr=0.1 if update.after < 4 else 0.05) for update in rank().updates)
    check = one_process(changed(10), updates=updates)
    assert check.verdict == "proved" and "Over 4 steps" in check.message
    assert one_process(changed(3), updates=updates).verdict == "disproved"


def test_an_original_that_does_not_repeat_itself_is_nothing_to_be_near_to() -> None:
    ranks = shared()
    traces = runs(
        run("O1", in_half(rank([2 * loss for loss in LOSSES])), level="O1"),
        run(O0_TOGETHER, *ranks),
        merged(ranks, [2 * loss for loss in LOSSES]),
    )
    checks = found(traces)
    assert (checks["o1-band"].verdict, checks["one-process"].verdict) == ("disproved", "unproved")
    again = run(ORIGINAL_AGAIN, rank([1.5 * loss for loss in LOSSES]), level=None)
    checks = found({**traces, again.name: again})
    assert (checks["o1-band"].verdict, checks["one-process"].verdict) == ("unproved", "unproved")
    assert "reproducible" in checks["one-process"].message


def test_random_numbers_in_the_step_make_equal_losses_impossible() -> None:
    steps = tuple(replace(step, random=True) for step in rank().backwards)
    check = one_process(backwards=steps)
    assert (check.verdict, "On average" in check.message) == ("proved", True)
    few = tuple(replace(step, loss=2.2 * step.loss) for step in steps)
    assert one_process(backwards=few).verdict == "unproved"
    # A factor shows through them.
    check = one_process(
        backwards=steps, updates=tuple(replace(update, norm=update.norm * 0.52) for update in rank().updates)
    )
    assert (check.verdict, "summed" in check.message) == ("disproved", True)


def test_a_dataset_that_draws_random_numbers_makes_them_impossible_too() -> None:
    ranks = shared()
    one = merged(ranks, [1.02 * loss for loss in LOSSES])
    assert found(runs(run(O0_TOGETHER, *ranks), one))["one-process"].verdict == "unproved"
    for drawn in (True, None):
        batches = tuple(replace(batch, random=drawn) for batch in one.ranks[0].batches)
        trace = replace(one, ranks=(replace(one.ranks[0], batches=batches),))
        check = found(runs(run(O0_TOGETHER, *ranks), trace))["one-process"]
        assert (check.verdict, "On average" in check.message) == ("proved", True)


def test_samples_that_are_not_the_same_are_not_compared() -> None:
    other = tuple(replace(batch, indices=(97, 98, 99, 100)) for batch in rank().batches)
    assert one_process(batches=other).verdict == "unproved"
    assert (
        one_process(changed(5, by=9), batches=(*merged(shared()).ranks[0].batches[:5], *other[5:])).verdict == "proved"
    )


def test_an_evaluation_that_all_read_alike_is_no_difference() -> None:
    def evaluating(made: RankTrace) -> RankTrace:
        more = [Batch(1, 0, 10, (index,)) for index in range(4)]
        return replace(made, batches=(*made.batches[:10], *more, *made.batches[10:]))

    ranks = [evaluating(one) for one in shared()]
    one = evaluating(merged(shared()).ranks[0])
    traces = runs(run(O0_TOGETHER, *ranks), run(ORIGINAL_MERGED, one, level=None))
    assert "Over 20 steps" in found(traces)["one-process"].message


def test_without_a_run_on_the_same_samples_the_reason_is_said() -> None:
    traces = runs(run(O0_TOGETHER, *shared()))
    assert "On average" in found(traces)["one-process"].message
    halved = [rank([loss / 2 for loss in LOSSES], number) for number in range(2)]
    halved = [replace(one, events=TALKING) for one in halved]
    assert found(runs(run(O0_TOGETHER, *halved)))["one-process"].verdict == "unproved"
    failed = run(ORIGINAL_MERGED, status="failed", failure=Failure("ValueError: batch of 4"), level=None)
    assert "batch of 4" in found(traces | {ORIGINAL_MERGED: failed})["one-process"].message


# ---- a script with a distribution of its own -------------------------------------------------------------------------

OWN = run(ORIGINAL, rank(events=TALKING), level=None)


def own(migrated: Sequence[RankTrace], original: Sequence[RankTrace] | None = None) -> dict[str, Check]:
    """A script that was written for several processes, before and after."""
    before = run(ORIGINAL_TOGETHER, *(original or shared()), level=None)
    return found(runs(OWN, run(O0_TOGETHER, *migrated), before))


def test_each_process_repeats_that_of_the_original() -> None:
    checks = own(shared())
    assert checks["together-exact"].verdict == "proved"
    assert not {"ranks-agree", "shares", "new-order", "one-process"} & set(checks)


def test_what_the_original_does_to_its_data_and_rate_is_its_own() -> None:
    first = shared()[0]
    assert (
        judge(ASKED, runs(OWN, run(O0_TOGETHER, first, first), run(ORIGINAL_TOGETHER, first, first))).verdict
        == "proved"
    )


@pytest.mark.parametrize(("apart", "verdict"), [(2e-5, "disproved"), (5e-6, "unproved")])
def test_a_process_that_differs_is_named_unless_it_is_rounding(apart: float, verdict: str) -> None:
    first, second = shared()
    check = own([first, with_norms(second, 1 + apart)])["together-exact"]
    assert (check.verdict, "In process 1 " in check.message) == (verdict, True)


def test_processes_that_no_longer_talk_are_found() -> None:
    assert own(shared(events=()))["together-exact"].verdict == "disproved"


def test_an_original_that_fails_in_several_processes_disproves_nothing() -> None:
    failure = Failure("RuntimeError: no")
    before = run(ORIGINAL_TOGETHER, level=None, status="failed", failure=failure, processes=2)
    checks = found(runs(OWN, run(O0_TOGETHER, *shared()), before))
    assert checks["together-exact"].verdict == "unproved"
    after = run(O0_TOGETHER, status="failed", failure=failure, processes=2)
    assert found(runs(OWN, after, before))["runs"].verdict == "unproved"
    assert found(runs(OWN, after))["runs"].verdict == "disproved"


# ---- what is measured ------------------------------------------------------------------------------------------------


def test_a_run_is_measured_over_all_its_processes() -> None:
    ranks = (rank(FLAT, peak_memory=10, skipped=1), rank([3.0] * STEPS, 1, peak_memory=30))
    made = measured(run(O0_TOGETHER, *ranks))
    assert (made.name, made.processes, made.losses[0]) == ("O0, 2 processes", 2, 2.0)
    assert (made.peak_memory, made.skipped, made.scales, made.error) == (30, 1, (), None)
    assert measured(run("O1", scaled_by(rank()))).scales == (LOSS_SCALE,) * STEPS
    assert measured(run("O1", rank([math.nan]))).losses == (None,)


def test_every_message_is_made_of_whole_sentences() -> None:
    evidences: list[Evidence] = [
        judge(ASKED, several(*shared())),
        judge(ASKED, runs(run(O0, rank(changed(3))), run(O0_SCALED, rank(changed(3))))),
        judge(ASKED, several(*shared(events=(*TALKING, "batch_norm")))),
    ]
    for check in (check for evidence in evidences for check in evidence.checks):
        assert not check.message[0].islower() and check.message.endswith("."), check
        assert "  " not in check.message and ".." not in check.message, check
