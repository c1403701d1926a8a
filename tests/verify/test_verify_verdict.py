"""What "proved" rests on, how far it reaches, and how half precision itself is told from a wrong migration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from amp_migrate.verify.checks.band import deviation
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import (
    O0,
    O0_SCALED,
    O0_TOGETHER,
    O1_FP16,
    O1_TOGETHER,
    ORIGINAL,
    ORIGINAL_AGAIN,
    PLAIN_AMP,
    PLAIN_AMP_FP16,
    Asked,
    planned,
)
from amp_migrate.verify.traces import Failure, RankTrace, Trace
from amp_migrate.verify.verdict import judge, needs_fp16_reference
from test_verify_checks import (
    ASKED,
    LOSSES,
    STEPS,
    TALKING,
    failed,
    found,
    in_half,
    nearby,
    rank,
    run,
    runs,
    scaled_by,
    several,
    shared,
)

FLAT = [1.0] * STEPS


# ---- the runs --------------------------------------------------------------------------------------------------------


def test_the_original_is_always_run_again_and_every_run_that_is_not_compared_to_its_end_is_a_part() -> None:
    made = list(planned(ASKED))
    assert [run.name for run in made] == [
        *(ORIGINAL, ORIGINAL_AGAIN, O0, O0_SCALED, PLAIN_AMP, "O1", O1_FP16, "O2", O0_TOGETHER, O1_TOGETHER)
    ]
    assert {run.name for run in made if run.reach == "whole"} == {ORIGINAL, O0, O0_TOGETHER}


def test_where_nothing_is_computed_in_half_no_run_is_made_for_it() -> None:
    in_float32 = [ORIGINAL, ORIGINAL_AGAIN, O0, O0_TOGETHER]
    assert [run.name for run in planned(replace(ASKED, precision="already"))] == in_float32
    assert {PLAIN_AMP, O1_TOGETHER}.isdisjoint(run.name for run in planned(replace(ASKED, levels=("O0",))))
    assert O1_TOGETHER not in {run.name for run in planned(replace(ASKED, processes=1))}


# ---- the verdict -----------------------------------------------------------------------------------------------------


def verdict_of(*more: Trace, asked: Asked = ASKED) -> str:
    return judge(asked, runs(*more)).verdict


def test_an_open_check_leaves_the_whole_open_and_is_named_in_the_summary() -> None:
    slow = run("O2", level="O2", status="timeout", failure=Failure("its time was up"), processes=1)
    evidence = judge(ASKED, runs(slow))
    assert (evidence.verdict, "runs" in evidence.summary) == ("unproved", True)
    assert verdict_of() == "proved"
    assert verdict_of(slow, run("O1", rank(), level="O1")) == "disproved"


def test_without_a_run_at_o0_nothing_is_proved() -> None:
    traces = runs()
    del traces[O0]
    assert judge(ASKED, traces).verdict == "unproved"


# ---- how far it reaches ----------------------------------------------------------------------------------------------


def test_the_reach_names_steps_levels_types_and_processes() -> None:
    traces = several(*shared())
    traces["O1"] = replace(traces["O1"], half_type="bf16")
    traces[O1_FP16] = replace(traces["O1"], name=O1_FP16, half_type="fp16")
    reach = judge(ASKED, traces).reach
    assert f"to backward call {STEPS}, after which the script goes on" in reach
    assert "on the CPU" in reach and "O0 and O1 in bfloat16 and float16" in reach and "1 and 2 processes" in reach


def test_the_reach_says_where_the_end_was_reached_and_which_runs_were_shorter() -> None:
    to_the_end = [run(ORIGINAL, rank(), level=None, status="ended"), run(O0, rank(), status="ended")]
    assert f"to the script's end ({STEPS} backward calls)" in judge(ASKED, runs(*to_the_end)).reach
    short = run("O1", in_half(rank(LOSSES[:7])), level="O1")
    reach = judge(ASKED, runs(*to_the_end, short)).reach
    assert "(some runs to 7 only)" in reach and "in 1 process." in reach


def test_a_run_that_did_not_get_through_is_not_in_the_reach() -> None:
    assert "O1" not in judge(ASKED, runs(failed("O1", "RuntimeError: x"))).reach
    assert judge(ASKED, {ORIGINAL: failed(ORIGINAL, "x", level=None)}).reach == ""


# ---- levels in half, beside plain autocast ---------------------------------------------------------------------------


def level(values: Sequence[float], plain: Sequence[float] | None, name: str = "O1", **changes: object) -> Check:
    """A level whose losses are these, where those of the original are flat and plain autocast has others."""
    beside = run(PLAIN_AMP, in_half(rank(plain)), level=None) if plain else failed(PLAIN_AMP, "x", level=None)
    made = replace(in_half(rank(values)), **changes)
    traces = runs(run(ORIGINAL, rank(FLAT), level=None), beside, run(name, made, level=name))
    return found(traces)[f"{name.lower()}-band"]


def off(size: float, start: int = STEPS // 2) -> list[float]:
    """Losses that leave the flat ones by a share, from a step on."""
    return [1.0 + (size if step >= start else 0.0) for step in range(STEPS)]


@pytest.mark.parametrize(
    ("own", "plain", "verdict", "words"),
    [
        (0.04, 0.0, "proved", "farthest"),
        (0.30, 0.28, "proved", "half precision is the cause"),
        (-0.30, 0.31, "proved", "amplifies rounding"),
        (-0.30, 0.29, "unproved", "cannot be decided"),
        (0.30, 0.0, "disproved", "amp-lint"),
        (-0.30, 0.04, "disproved", "amp-lint"),
        (-0.15, 0.04, "unproved", "not much less"),
    ],
)
def test_a_level_is_held_against_what_plain_autocast_does(own: float, plain: float, verdict: str, words: str) -> None:
    check = level(off(own), off(plain))
    assert (check.verdict, words in check.message) == (verdict, True), check.message


def test_a_level_that_is_elsewhere_from_the_start_is_not_excused_by_a_training_that_amplifies_rounding() -> None:
    assert level(off(-0.3, 0), off(0.31)).verdict == "unproved"
    assert level(off(-0.3, 8), off(0.31)).verdict == "proved"


def test_without_plain_autocast_nothing_is_disproved_by_distance() -> None:
    assert level(off(0.3), None).verdict == "unproved"
    assert level(off(math.nan), None).verdict == "unproved"
    assert level(off(0.04), None).verdict == "proved"


def test_what_is_not_finite_under_plain_autocast_either_is_no_fault() -> None:
    assert level(off(math.nan), off(0.0)).verdict == "disproved"
    assert level(off(math.nan), off(math.nan)).verdict == "unproved"
    assert level(off(0.3), off(math.nan)).verdict == "unproved"
    short = off(0.0)[:5]
    assert level(off(math.nan), short).verdict == "unproved", "plain autocast was not run as far"


def test_that_plain_autocast_does_not_get_through_is_noted() -> None:
    notes = [judge(ASKED, traces).notes for traces in (runs(failed(PLAIN_AMP, "x", level=None)), runs())]
    assert [any("own autocast" in note for note in found) for found in notes] == [True, False]


def test_o3_loses_small_updates_by_design() -> None:
    assert level(off(0.3), off(0.0), "O3").verdict == "unproved"
    assert level(off(0.3), off(0.0), "O2").verdict == "disproved"


def test_a_shorter_run_is_compared_as_far_as_it_goes() -> None:
    long = [*(rank(site="a.py:1").backwards), *(rank(site="a.py:2").backwards)]
    where = deviation(long, [replace(step, loss=step.loss * 1.5) for step in long[:STEPS]])
    assert where is not None and where.size == pytest.approx(0.5)


# ---- float16 besides bfloat16 ----------------------------------------------------------------------------------------


def in_fp16(losses: Sequence[float], name: str = O1_FP16, level: str | None = "O1") -> Trace:
    return run(name, in_half(rank(losses)), level=level, half_type="fp16")


def test_float16_is_only_held_against_plain_autocast_where_that_tells_something() -> None:
    near, far = in_fp16(LOSSES), in_fp16([3 * loss for loss in LOSSES])
    assert not needs_fp16_reference(runs(), ASKED)
    assert not needs_fp16_reference(runs(near), ASKED)
    assert needs_fp16_reference(runs(far), ASKED)
    assert needs_fp16_reference(runs(replace(near, status="failed")), ASKED)


def test_float16_disproves_and_proves_but_leaves_nothing_open() -> None:
    far = in_fp16([3 * loss for loss in LOSSES])
    assert found(runs(in_fp16(LOSSES)))["o1-fp16-band"].verdict == "proved"
    assert "o1-fp16-band" not in found(runs(far))
    assert found(runs(far, in_fp16(LOSSES, PLAIN_AMP_FP16, None)))["o1-fp16-band"].verdict == "disproved"
    elsewhere = in_fp16([0.4 * loss for loss in LOSSES], PLAIN_AMP_FP16, None)
    assert "o1-fp16-band" not in found(runs(far, elsewhere))


# ---- computed in half ------------------------------------------------------------------------------------------------


def test_what_torch_lacks_in_half_is_not_said_to_be_left_out_of_autocast() -> None:
    in_full = run("O1", rank(), level="O1")
    assert found(runs(in_full))["o1-half"].verdict == "disproved"
    assert found(runs(in_full, failed(PLAIN_AMP, "no LSTM", level=None)))["o1-half"].verdict == "unproved"


def test_a_model_without_products_has_nothing_to_compute_in_half() -> None:
    without = rank()
    without = replace(without, backwards=tuple(replace(step, full=0) for step in without.backwards))
    level = run("O1", without, level="O1")
    assert found(runs(level))["o1-half"].verdict == "unproved"
    assert "o1-half" not in found(runs(level, run(PLAIN_AMP, without, level=None)))


# ---- a loss scale ----------------------------------------------------------------------------------------------------


def test_a_step_that_only_a_scale_leaves_out_is_no_overflow() -> None:
    """As of a condition on gradients that are still scaled."""
    made = scaled_by(rank())
    made = replace(made, updates=made.updates[:-1])
    assert found(runs(run(O0_SCALED, made)))["o0-scaled"].verdict == "disproved"


# ---- O1 in several processes -----------------------------------------------------------------------------------------


def o1_together(*ranks: RankTrace, full: Sequence[RankTrace] = (), **changes: object) -> dict[str, Check]:
    traces = several(*(full or shared()))
    return found(traces | {O1_TOGETHER: run(O1_TOGETHER, *ranks, level="O1", **changes)})


def halves(factor: float = 1.001) -> list[RankTrace]:
    return [in_half(nearby(one, factor)) for one in shared()]


def test_processes_in_half_stay_near_those_in_float32() -> None:
    checks = o1_together(*halves())
    assert checks["o1-together"].verdict == "proved"
    assert checks["o1-together-half"].verdict == "proved"
    assert o1_together(*halves(1.5))["o1-together"].verdict == "disproved"


def test_the_mean_over_the_processes_counts() -> None:
    first, second = halves()
    assert o1_together(nearby(first, 1.2), nearby(second, 0.8))["o1-together"].verdict == "proved"


@pytest.mark.parametrize(("parts_at", "verdict"), [(30, "proved"), (40, "disproved")])
def test_plain_autocast_is_asked_about_as_many_samples(parts_at: int, verdict: str) -> None:
    """Two processes see in 20 steps what one sees in 40."""
    losses = [1.0] * 40
    apart = [1.0] * parts_at + [1.3] * (40 - parts_at)
    ranks = [replace(one, backwards=rank([1.0] * 20).backwards) for one in shared()]
    halved = [in_half(replace(one, backwards=rank([1.0] * 15 + [1.2] * 5).backwards)) for one in shared()]
    traces = several(*ranks) | {
        ORIGINAL: run(ORIGINAL, rank(losses), level=None),
        ORIGINAL_AGAIN: run(ORIGINAL_AGAIN, rank(losses), level=None),
        PLAIN_AMP: run(PLAIN_AMP, rank(apart), level=None),
        O1_TOGETHER: run(O1_TOGETHER, *halved, level="O1"),
    }
    check = found(traces)["o1-together"]
    assert check.verdict == verdict, check.message


def test_processes_that_differ_only_in_half_are_found() -> None:
    first, second = halves()
    assert o1_together(first, replace(second, parameters=("01",)))["o1-together"].verdict == "disproved"
    apart = [replace(one, parameters=(str(one.rank),)) for one in shared()]
    # They do at O0, which is another check's to say.
    assert o1_together(first, replace(second, parameters=("01",)), full=apart)["o1-together"].verdict == "proved"


def test_steps_that_only_one_process_skips_are_found() -> None:
    first, second = halves()
    check = o1_together(first, replace(second, skipped=1))["o1-together"]
    assert (check.verdict, "0 to 1 step" in check.message) == ("disproved", True)
    assert o1_together(first, replace(second, updates=second.updates[1:]))["o1-together"].verdict == "disproved"
    assert o1_together(first, replace(second, backwards=second.backwards[:9]))["o1-together"].verdict == "disproved"


def test_processes_that_do_not_talk_in_half_are_found() -> None:
    assert o1_together(*(replace(one, events=()) for one in halves()))["o1-together"].verdict == "disproved"


def test_processes_in_half_that_leave_a_part_of_the_model_in_float32_are_found() -> None:
    in_float32 = shared(events=(*TALKING, "amp"))
    assert o1_together(*in_float32)["o1-together-half"].verdict == "disproved"


# ---- besides ---------------------------------------------------------------------------------------------------------


def test_a_backward_call_under_autocast_is_named() -> None:
    made = in_half(rank())
    under = replace(made, backwards=tuple(replace(step, autocast=True) for step in made.backwards))
    check = found(runs(run("O1", under, level="O1")))["o1-half"]
    assert (check.verdict, "train.py:40" in check.message) == ("unproved", True)


def test_float16_that_was_asked_for_is_not_left_out() -> None:
    asked = replace(ASKED, half_types=("bf16", "fp16"))
    far = in_fp16([3 * loss for loss in LOSSES])
    assert found(runs(far), asked)["o1-fp16-band"].verdict == "unproved"
    plain = failed(PLAIN_AMP_FP16, "RuntimeError: x", level=None, half_type="fp16")
    traces = runs(plain, failed(O1_FP16, "RuntimeError: x", half_type="fp16"))
    assert (found(traces, asked)["runs"].verdict, found(traces)["runs"].verdict) == ("unproved", "proved")
