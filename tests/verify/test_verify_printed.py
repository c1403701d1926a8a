"""What a script prints: what two runs of it have in common, and what the checks make of what they have not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from amp_migrate.verify import printed
from amp_migrate.verify.checks import counts, ending, printed_together
from amp_migrate.verify.checks import printed as alone
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import (
    LOSS_SCALE,
    O0,
    O0_SCALED,
    O0_TOGETHER,
    ORIGINAL,
    ORIGINAL_AGAIN,
    ORIGINAL_MERGED,
    ORIGINAL_TOGETHER,
    Asked,
)
from amp_migrate.verify.traces import Backward, Batch, RankTrace, Said, Trace, Update

ASKED = Asked("train.py")

SENTENCES = {
    "Train Epoch: 1 [640/60000 (1%)]\tLoss: 0.123456": (
        "Train Epoch: # [#/# (#%)] Loss: #",
        ("1", "640", "60000", "1", "0.123456"),
    ),
    "Epoch 3 [ 10/100]  Time  0.123 ( 0.200)  Data  0.001 ( 0.002)  Loss 2.3e-01 (2.4e-01)": (
        "Epoch # [ #/#] … … Loss # (#)",
        ("3", "10", "100", "2.3e-01", "2.4e-01"),
    ),
    "| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 12.34 | loss  6.88": (
        "| epoch # | #/ # batches | lr # | … | loss #",
        ("1", "200", "2983", "20.00", "6.88"),
    ),
    "Epoch 1/10 - 3s 12ms/step - loss: 0.4321": ("Epoch #/# - … … - loss: #", ("1", "10", "0.4321")),
    "2024-01-31 12:00:03,123 - INFO - acc -1.5e-3": ("… - INFO - acc #", ("-1.5e-3",)),
    "Wed Jun  9 04:26:40 1993 loss nan": ("… loss #", ("nan",)),
    "epoch 5 (3.2s) loss .5, 812.3 img/s": ("epoch # (…) loss #, …", ("5", ".5")),
    "Time taken for epoch 1: 12.3 sec, loss 0.5": ("…, loss #", ("0.5",)),
    "elapsed 0:00:12.3, took 3, 1,234 samples": ("…, …, # samples", ("1,234",)),
    "min 0.1 max 0.9 mem 5.2GB seed 42": ("min # max # … seed #", ("0.1", "0.9", "42")),
    "0.1 min 0.05 max": ("# min # max", ("0.1", "0.05")),
    "saved /tmp/tmp8xk2/model.pt, <Net object at 0x7f12a>": ("saved …, <Net object at …>", ()),
    "\x1b[32mloss\x1b[0m 2": ("loss #", ("2",)),
    "  1/3 [=>\r  3/3 loss 2\r": ("#/# loss #", ("3", "3", "2")),
    "memory_bank_size 4096 timesteps 10": ("memory_bank_size # timesteps #", ("4096", "10")),
}


@pytest.mark.parametrize("raw", SENTENCES)
def test_a_line_is_a_sentence_and_its_numbers(raw: str) -> None:
    found = printed.line(raw)
    assert found is not None
    assert (found.sentence, found.numbers) == SENTENCES[raw]


@pytest.mark.parametrize(
    "raw",
    ["", "   ", "100%|██████████| 10/10 [00:01<00:00,  9.8it/s, loss=0.5]", "took 3.2 s", "5it [00:01,  4.5it/s]"],
)
def test_progress_and_times_alone_are_no_lines(raw: str) -> None:
    assert printed.line(raw) is None


@pytest.mark.parametrize(
    ("raw", "before"),
    [
        ("Namespace(lr=0.1, amp=None)", "Namespace(lr=0.1)"),
        ("Namespace(amp=None, lr=0.1)", "Namespace(lr=0.1)"),
        ("{'lr': 0.1, 'amp': None, 'epochs': 2}", "{'lr': 0.1, 'epochs': 2}"),
        ('{"lr": 0.1, "amp": null}', '{"lr": 0.1}'),
    ],
)
def test_the_option_of_the_switch_is_left_out_of_arguments_that_are_shown(raw, before):
    one, other = printed.line(raw), printed.line(before)
    assert one is not None and other is not None
    assert (one.sentence, one.numbers) == (other.sentence, other.numbers)
    assert printed.line("  amp: None ") is None and printed.line("amp: O1") is not None
    assert "lamp=None" in printed.line("f(x, lamp=None)").sentence


@pytest.mark.parametrize(
    ("number", "worth"), [("0.512", 1e-3), ("3", 1.0), ("2.5e-03", 1e-4), ("1,234", 1.0), (".5", 0.1)]
)
def test_the_last_digit_of_a_number(number: str, worth: float) -> None:
    assert printed.last_digit(number) == pytest.approx(worth)


# ---- checks ----------------------------------------------------------------------------------------------------

EPOCHS, BATCHES = 3, 4


def rank(number: int = 0, ranks: int = 1, batches: int = BATCHES, **changes: object) -> RankTrace:
    """Three epochs over 16 samples, in as many batches, shared out among so many ranks."""
    size = 16 // batches // ranks
    made = [(epoch, step) for epoch in range(EPOCHS) for step in range(batches)]
    trace = RankTrace(
        number,
        tuple(Backward(1.0, 0.1 * index, site="train.py:9") for index, _ in enumerate(made)),
        tuple(
            Batch(0, epoch, index, tuple(range(size)), length=0 if step else batches)
            for index, (epoch, step) in enumerate(made)
        ),
        tuple(Update(0, index + 1, 1.0, 0.1) for index, _ in enumerate(made)),
        parameters=("00",),
        events=("amp", "process_group", "ddp") if ranks > 1 else (),
    )
    return replace(trace, **changes)


def said(text: str, per: int, *, silent: bool = False) -> tuple[Said, ...]:
    """The lines as the recorder saw them, so many backward calls after each other."""
    lines = text.rstrip("\n").split("\n") if text else []
    return tuple(Said(line, "train.py:12", per * (number + 1), silent) for number, line in enumerate(lines))


def run(name: str, *texts: str, level: str | None = "O0", batches: int = BATCHES, **changes: object) -> Trace:
    """A run that printed so much on each rank."""
    ranks = tuple(rank(number, len(texts), batches, said=said(text, batches)) for number, text in enumerate(texts))
    made = Trace(name, level, len(texts), "ended", ranks, printed=texts)
    return replace(made, **changes)


TEXT = "epoch 1 loss 0.5\nepoch 2 loss 0.4\nepoch 3 loss 0.3\n"


def found(module: object, *traces: Trace, original: str = TEXT) -> dict[str, Check]:
    made = {trace.name: trace for trace in (run(ORIGINAL, original, level=None), *traces)}
    return {check.id: check for check in module.check(made, ASKED)}  # type: ignore[attr-defined]


def again(text: str = TEXT, **changes: object) -> Trace:
    return run(ORIGINAL_AGAIN, text, level=None, **changes)


def test_the_same_lines_are_proved() -> None:
    check = found(alone, run(O0, TEXT))[alone.ID]
    assert (check.verdict, "3 lines with 6 numbers" in check.message) == ("proved", True)


@pytest.mark.parametrize(
    "text",
    [TEXT.replace("0.4", "0.8"), TEXT.replace("epoch 2 loss 0.4\n", ""), TEXT + "done\n", TEXT.replace("loss", "mean")],
)
def test_another_line_is_disproved_where_the_original_repeats_itself(text: str) -> None:
    assert found(alone, run(O0, text), again())[alone.ID].verdict == "disproved"
    assert found(alone, run(O0, text))[alone.ID].verdict == "unproved"


def test_the_line_that_prints_it_is_named() -> None:
    check = found(alone, run(O0, TEXT.replace("0.4", "0.8")), again())[alone.ID]
    assert "`epoch 2 loss 0.8`" in check.message and "train.py:12" in check.message


def test_a_number_that_the_original_does_not_repeat_is_no_evidence() -> None:
    other = TEXT.replace("0.4", "0.8")
    assert found(alone, run(O0, other), again(TEXT.replace("0.4", "0.6")))[alone.ID].verdict == "proved"
    assert found(alone, run(O0, other), again(TEXT.replace("0.3", "0.6")))[alone.ID].verdict == "proved"
    other_sentence = again(TEXT.replace("epoch 1", "pass 1"))
    assert found(alone, run(O0, other), other_sentence)[alone.ID].verdict == "unproved"


def test_a_line_that_the_second_run_did_not_come_to_is_no_evidence() -> None:
    text, short = TEXT + "test 0.9\n", again(status="stopped", steps=4)
    check = found(alone, run(O0, text.replace("0.9", "0.8")), short, original=text)[alone.ID]
    assert check.verdict == "unproved"


def test_of_a_run_that_was_stopped_earlier_only_its_part_counts() -> None:
    part = TEXT[: TEXT.index("epoch 3")]
    ranks = (rank(said=said(part, BATCHES)),)
    ranks = (replace(ranks[0], backwards=ranks[0].backwards[:9], updates=ranks[0].updates[:9]),)
    stopped = run(O0, part, ranks=ranks, status="stopped")
    assert found(alone, stopped)[alone.ID].verdict == "proved"
    missing = replace(stopped, printed=(TEXT[: TEXT.index("epoch 2")],))
    assert found(alone, missing, again())[alone.ID].verdict == "disproved"


def test_where_the_training_differs_nothing_is_said_of_lines() -> None:
    ranks = (replace(rank(), parameters=("01",)),)
    assert found(alone, run(O0, TEXT.replace("0.4", "0.8"), ranks=ranks), again()) == {}


def test_a_number_of_a_scaled_loss_is_disproved() -> None:
    scaled = run(O0_SCALED, TEXT.replace("0.4", str(0.4 * LOSS_SCALE)), loss_scale=LOSS_SCALE)
    check = found(alone, run(O0, TEXT), scaled, again())[alone.SCALED_ID]
    assert (check.verdict, "unscale it first" in check.message) == ("disproved", True)


def test_the_scale_itself_may_be_printed() -> None:
    text = TEXT + "scale 1.0\n"
    scaled = run(O0_SCALED, text.replace("1.0", "65536.0"), loss_scale=LOSS_SCALE)
    assert found(alone, run(O0, text), scaled, again(text), original=text)[alone.SCALED_ID].verdict == "proved"


# ---- several processes -----------------------------------------------------------------------------------------


def together(mine: str, *, other: str | None = None, printed_too: str = "", **changes: object) -> Trace:
    """Two ranks; the second would have printed ``other`` and was kept silent."""
    made = run(O0_TOGETHER, mine, printed_too, batches=BATCHES // 2, **changes)
    if other is None:
        return made
    second = replace(made.ranks[1], said=said(other, BATCHES // 2, silent=True))
    return replace(made, ranks=(made.ranks[0], second))


def merged(text: str) -> Trace:
    return run(ORIGINAL_MERGED, text, level=None, batches=BATCHES // 2, batch_factor=2)


def of(*traces: Trace, original: str = TEXT) -> Check:
    return found(printed_together, *traces, original=original)[printed_together.ID]


TRAINED = TEXT.replace("0.5", "0.7").replace("0.4", "0.6")
"""What two processes print that train otherwise: fewer steps of larger batches."""


def test_numbers_of_all_samples_are_proved() -> None:
    assert of(together(TRAINED, other=TRAINED), merged(TRAINED)).verdict == "proved"
    assert of(together(TRAINED, other=TRAINED)).verdict == "proved"


def test_other_ranks_that_print_are_disproved_under_the_runtime() -> None:
    loud = together(TRAINED, printed_too=TRAINED)
    assert of(loud).verdict == "disproved"
    ranks = tuple(replace(one, events=("process_group", "ddp")) for one in loud.ranks)
    assert of(replace(loud, ranks=ranks)).verdict == "unproved"


def test_a_rank_0_that_prints_nothing_is_disproved() -> None:
    assert of(together("")).verdict == "disproved"


def test_a_line_before_the_training_that_is_missing_is_left_open() -> None:
    text = "16 samples\n" + TEXT
    first = replace(run(ORIGINAL, text, level=None).ranks[0], said=(Said("16 samples", "train.py:3"), *said(TEXT, 4)))
    original = run(ORIGINAL, text, level=None, ranks=(first,))
    assert of(together(TRAINED), original).verdict == "unproved"


def test_a_model_that_is_printed_may_have_a_wrapper() -> None:
    model = ("Net(", "  (norm): BatchNorm1d(2)", ")")
    wrapped = ("Wrapper(", "  (module): Net(", "    (norm): SyncBatchNorm(2)", "  )", ")")
    traces = []
    for lines, made in ((model, run(ORIGINAL, TEXT, level=None)), (wrapped, together(TRAINED))):
        first = replace(made.ranks[0], said=(*(Said(line, "train.py:3") for line in lines), *made.ranks[0].said))
        text = "\n".join((*lines, made.printed[0]))
        traces.append(replace(made, ranks=(first, *made.ranks[1:]), printed=(text, *made.printed[1:])))
    assert of(traces[1], traces[0]).verdict == "proved"


def halved(text: str) -> str:
    for number in ("0.5", "0.4", "0.3", "0.7", "0.6"):
        text = text.replace(number, f"{float(number) / 2:.3f}")
    return text


def test_a_share_of_what_one_process_prints_on_the_same_samples_is_disproved() -> None:
    check = of(together(halved(TRAINED)), merged(TRAINED))
    assert (check.verdict, "1/2" in check.message) == ("disproved", True)


def test_numbers_whose_sum_over_the_ranks_is_the_originals_are_disproved() -> None:
    other = TEXT.replace("0.5", "0.26").replace("0.4", "0.19").replace("0.3", "0.151")
    check = of(together(halved(TEXT), other=other))
    assert (check.verdict, "Sum it" in check.message) == ("disproved", True)


def test_a_sum_that_may_be_chance_is_left_open() -> None:
    text = "test 0.9\n"
    assert of(together("test 0.46\n", other="test 0.44\n"), original=text).verdict == "unproved"


def test_half_of_the_original_on_which_all_ranks_agree_is_no_share() -> None:
    assert of(together(halved(TEXT), other=halved(TEXT))).verdict == "proved"


@pytest.mark.parametrize(
    ("random", "count", "verdict"),
    [
        (True, "32", "proved"),
        (True, "32.0", "proved"),
        (False, "32", "unproved"),
        (True, "31%", "proved"),
        (True, "36%", "unproved"),
        (True, "100", "unproved"),
        (True, "15", "unproved"),
    ],
)
def test_what_models_count_that_draw_other_numbers_is_apart_by_chance(random: bool, count: str, verdict: str) -> None:
    """Of 256 evaluated samples 29 are right in one process."""
    unit = "%" * count.endswith("%")
    made = together(f"right {count}/256\n", other=f"right {count}/256\n")
    steps = tuple(replace(step, random=random) for step in made.ranks[0].backwards)
    ranks = tuple(replace(one, backwards=steps) for one in made.ranks)
    original = f"right 40{unit}/256\n"
    assert of(replace(made, ranks=ranks), merged(f"right 29{unit}/256\n"), original=original).verdict == verdict


@pytest.mark.parametrize(("percent", "verdict"), [(12.5, "proved"), (9.1, "unproved")])
def test_a_percentage_of_two_counts_says_what_they_say(percent: float, verdict: str) -> None:
    text = "right {}/256 = {}%\n"
    made = together(text.format(32, percent), other=text.format(32, percent))
    steps = tuple(replace(step, random=True) for step in made.ranks[0].backwards)
    ranks = tuple(replace(one, backwards=steps) for one in made.ranks)
    one = merged(text.format(29, 11.3))
    assert of(replace(made, ranks=ranks), one, original=text.format(40, 15.6)).verdict == verdict


@pytest.mark.parametrize(
    ("other", "random", "verdict"),
    [
        ("0.484", True, "proved"),
        ("0.484", False, "unproved"),
        ("0.384", True, "unproved"),
        ("0.2265", True, "disproved"),
    ],
)
def test_a_measured_number_may_be_farther_off_where_steps_draw(other: str, random: bool, verdict: str) -> None:
    made = together(f"top1 {other}\n", other=f"top1 {other}\n")
    steps = tuple(replace(step, random=random) for step in made.ranks[0].backwards)
    ranks = tuple(replace(one, backwards=steps) for one in made.ranks)
    assert of(replace(made, ranks=ranks), merged("top1 0.453\n"), original="top1 0.6\n").verdict == verdict


def test_a_count_of_the_samples_of_one_rank_is_disproved() -> None:
    text, mine = ("".join(f"epoch {epoch} samples {count}\n" for epoch in (1, 2, 3)) for count in (16, 8))
    assert of(together(mine, other=mine), original=text).verdict == "disproved"


def test_a_count_of_steps_is_half_as_large_rightly() -> None:
    text, mine = ("".join(f"epoch {epoch} step {count * epoch}\n" for epoch in (1, 2, 3)) for count in (4, 2))
    assert of(together(mine, other=mine), original=text).verdict == "proved"


def test_a_count_of_what_is_not_known_is_left_open() -> None:
    text, mine = ("".join(f"epoch {epoch} right {count}\n" for epoch in (1, 2, 3)) for count in (200, 100))
    assert of(together(mine, other=mine), original=text).verdict == "unproved"


def test_a_number_that_the_original_does_not_repeat_is_left_out_in_several_processes_too() -> None:
    mine = TRAINED.replace("0.7", "0.1")
    assert of(together(mine), merged(TRAINED)).verdict == "unproved"
    assert of(together(mine), merged(TRAINED), again(TEXT.replace("0.5", "0.9"))).verdict == "proved"


def evaluated(trace: Trace, *, shared: bool) -> Trace:
    """The ranks of a run read another loader after the first pass."""
    return replace(
        trace,
        ranks=tuple(
            replace(
                one,
                batches=(*one.batches, Batch(1, 0, BATCHES // 2, ((0, 1), (2, 3))[one.rank * shared], learns=False)),
            )
            for one in trace.ranks
        ),
    )


def test_a_measure_of_shared_samples_has_to_be_one_of_all() -> None:
    text, mine, other = ("acc 0.90\n", "acc 0.80\n", "acc 0.86\n")
    assert of(evaluated(together(mine, other=other), shared=True), original=text).verdict == "disproved"
    assert of(evaluated(together(mine, other=other), shared=False), original=text).verdict == "proved"
    assert of(evaluated(together(mine, other=mine), shared=True), original=text).verdict == "proved"
    both = [f"{line}loss 0.5\n" for line in (mine, other)]
    beside = together(both[0], other=both[1])
    ranks = tuple(replace(one, said=tuple(replace(line, before=2) for line in one.said)) for one in beside.ranks)
    run_ = evaluated(replace(beside, ranks=ranks), shared=True)
    assert of(run_, original=f"{text}loss 0.6\n").verdict == "unproved"


def test_progress_within_a_pass_is_one_ranks() -> None:
    lines = [f"epoch {epoch} 0/{size}\n" for size in (16, 8) for epoch in (1, 2)]
    text, mine = "".join(lines[:2]), "".join(lines[2:])
    for before, verdict in ((1, "proved"), (2, "disproved")):
        run_ = together(mine, other=mine)
        said_ = tuple(replace(line, before=before) for line in run_.ranks[0].said)
        run_ = replace(run_, ranks=(replace(run_.ranks[0], said=said_), run_.ranks[1]))
        assert of(run_, merged(text), original=text).verdict == verdict


def test_the_processes_of_a_distributed_script_are_compared_one_by_one() -> None:
    before = run(ORIGINAL_TOGETHER, TEXT, "rank 1\n", level=None, batches=BATCHES // 2)
    same = run(O0_TOGETHER, TEXT, "rank 1\n", batches=BATCHES // 2)
    assert of(same, before).verdict == "proved"
    assert of(replace(same, printed=(TEXT, "rank 2\n")), before).verdict == "unproved"


def test_counts_are_known_from_what_was_read() -> None:
    one = rank()
    assert (
        counts.is_of_samples(one, 16, 4) and counts.is_of_samples(one, 48, 12) and not counts.is_of_samples(one, 8, 4)
    )
    assert counts.is_of_steps(one, 4, 8) and counts.is_of_steps(one, 8, 8) and not counts.is_of_steps(one, 30, 8)


# ---- the end ---------------------------------------------------------------------------------------------------


def test_ends_are_compared() -> None:
    checks = found(ending, run(O0, TEXT), together(TRAINED))
    assert {check.id: check.verdict for check in checks.values()} == {
        ending.ID: "proved",
        ending.TOGETHER_ID: "proved",
    }


def test_another_number_of_passes_is_left_open() -> None:
    run_ = together(TRAINED)
    ranks = tuple(replace(one, batches=one.batches[:4]) for one in run_.ranks)
    assert found(ending, replace(run_, ranks=ranks))[ending.TOGETHER_ID].verdict == "unproved"
    apart = (run_.ranks[0], ranks[1])
    assert found(ending, replace(run_, ranks=apart))[ending.TOGETHER_ID].verdict == "unproved"


def test_another_last_line_is_left_open() -> None:
    assert found(ending, together(TRAINED + "stopped early\n"))[ending.TOGETHER_ID].verdict == "unproved"
