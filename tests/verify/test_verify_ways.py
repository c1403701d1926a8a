"""Lines are followed without a change in what a script does, and tell where it was done what a check has found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest
from amp_migrate.verify.checks import carried, contents, draws, rates, steering, ways
from amp_migrate.verify.checks import runs as checks_of_runs
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.followed import Changed, Drawn, Followed, Line
from amp_migrate.verify.plan import O0, O0_TOGETHER, ORIGINAL, ORIGINAL_MERGED, Asked
from amp_migrate.verify.traces import Backward, Batch, Failure, RankTrace, Trace, Update
from recording import HEAD, Record

ASKED = Asked("train.py")
TALKING = ("process_group", "ddp")
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes")


def run(name: str, *ranks: RankTrace) -> Trace:
    return Trace(name, None if name.startswith("original") else "O0", len(ranks), "ended", ranks)


def process(number: int = 0, batches: Sequence[Batch] = (), **found: object) -> RankTrace:
    """A process with a backward call for each batch."""
    backwards = tuple(Backward(1.0, 0.1 * step, site="train.py:40") for step in range(len(batches)))
    return RankTrace(number, backwards, tuple(batches), events=TALKING, followed=Followed(**found))  # type: ignore[arg-type]


def checked(module: object, *traces: Trace) -> Check | None:
    found = list(module.check({trace.name: trace for trace in traces}, ASKED))  # type: ignore[attr-defined]
    return found[0] if found else None


# ---- where ways part -------------------------------------------------------------------------------------------------


def way(*lines: int | str) -> tuple[Line, ...]:
    """Lines by their numbers; ``"5 if rank == 0:"`` has a text."""
    parts = [str(line).partition(" ") for line in lines]
    return tuple(Line(f"train.py:{number}", text) for number, _, text in parts)


def parted(first: Sequence[tuple[Line, ...]], second: Sequence[tuple[Line, ...]]) -> str:
    found = ways.parting([process(0, ways=tuple(first)), process(1, ways=tuple(second))])
    return found.line.site if found is not None else ""


def test_ways_part_after_the_last_line_that_both_go_through() -> None:
    alike = way(1, 2, 3)
    assert parted([alike, way(1, 2, "5 if loss > 9:", 7)], [alike, way(1, 2, "5 if loss > 9:", 6, 1)]) == "train.py:5"
    assert parted([alike, alike], [alike, alike]) == ""


def test_what_one_rank_does_for_all_is_no_parting() -> None:
    saving, others = way(1, "2 if rank == 0:", 3, 4, 5), way(1, "2 if rank == 0:", 5)
    assert parted([saving], [others]) == ""
    assert parted([(*saving, *way(6, 7))], [(*others, *way(6, 8))]) == "train.py:6"


def test_a_line_from_which_each_rank_always_goes_one_way_lets_one_do_what_is_done_once() -> None:
    saving, others = way(1, "2 if chosen:", 3, 4), way(1, "2 if chosen:", 4)
    assert parted([saving, saving], [others, others]) == ""
    assert parted([saving, others], [others, others]) == "train.py:2"


def test_a_way_that_is_cut_off_where_a_run_was_ended_parts_nowhere() -> None:
    assert parted([way(1, 2), way(1, 2, 3)], [way(1, 2), way(1, 2)]) == ""


def test_a_failure_of_several_processes_tells_where_their_ways_part() -> None:
    batches = [Batch(0, 0, step) for step in range(3)]
    line = "5 if loss > 9:"
    ranks = process(0, batches, ways=(way(1, line, 6),)), process(1, batches, ways=(way(1, line, 7),))
    broken = replace(run(O0_TOGETHER, *ranks), status="failed", failure=Failure("RuntimeError: Connection closed"))
    check = checked(checks_of_runs, run(ORIGINAL, process(0, batches)), run(O0, process(0, batches)), broken)
    assert check is not None
    assert "The ranks take different branches at train.py:5 (`if loss > 9:`)" in check.message


# ---- what samples hold -----------------------------------------------------------------------------------------------

COUNT = 36


def reading(order: Sequence[int], labels: Sequence[int], epoch: int = 0, step: int = 0) -> list[Batch]:
    """Batches of two samples that hold their label, and their place."""
    return [
        Batch(
            0,
            epoch,
            step + at // 2,
            tuple(order[at : at + 2]),
            data="Data/36#0",
            samples=tuple(order[at : at + 2]),
            contents=tuple(f"{place}:{labels[place]}" for place in order[at : at + 2]),
            labels=tuple(str(labels[place]) for place in order[at : at + 2]),
            length=len(order) // 2,
            size=COUNT,
        )
        for at in range(0, len(order), 2)
    ]


LABELS = [place % 3 for place in range(COUNT)]
RENAMED = [(label + 1) % 3 for label in LABELS]
IN_ORDER = list(range(COUNT))
BACKWARDS = IN_ORDER[::-1]


def held(
    *of_ranks: Sequence[int], again: Sequence[int] = LABELS, order: Sequence[int] = (*IN_ORDER[1:], 0)
) -> Check | None:
    """What is said where each rank reads its half, and samples have these labels there.

    In one process they have other ones where they are read again, in that order.
    """
    alone = process(0, reading(IN_ORDER, LABELS))
    ranks = [
        process(number, reading(IN_ORDER[number::2], labels), unordered=("train.py:7",))
        for number, labels in enumerate(of_ranks)
    ]
    merged = run(ORIGINAL_MERGED, process(0, reading(order, again)))
    return checked(contents, run(ORIGINAL, alone), run(O0, alone), run(O0_TOGETHER, *ranks), merged)


def test_samples_that_hold_the_same_on_all_ranks_are_proved() -> None:
    check = held(LABELS, LABELS)
    assert check is not None
    assert check.verdict == "proved"


def test_labels_in_another_order_on_one_rank_are_disproof_and_the_set_is_named() -> None:
    check = held(LABELS, RENAMED)
    assert check is not None
    assert (check.verdict, "rank 1" in check.message, "train.py:7" in check.message) == ("disproved", True, True)


def test_labels_in_another_order_on_all_ranks_are_right() -> None:
    assert held(RENAMED, RENAMED) is None


def test_data_that_a_rank_draws_by_itself_is_no_disproof() -> None:
    check = held(LABELS, [(place * place + 1) // 2 % 3 for place in range(COUNT)])
    assert check is not None
    assert check.verdict == "unproved"


def test_samples_that_are_others_each_time_are_not_compared() -> None:
    assert held(LABELS, RENAMED, again=RENAMED) is None


def test_samples_that_always_came_up_in_the_same_batches_are_not_compared() -> None:
    assert held(LABELS, RENAMED, order=BACKWARDS) is None


# ---- a list that is shuffled itself ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("other", "verdict"), [(IN_ORDER, "proved"), (BACKWARDS, "disproved")])
def test_of_a_list_that_ranks_shuffle_apart_samples_are_missing(other: Sequence[int], verdict: str) -> None:
    original = [*shuffled(IN_ORDER, IN_ORDER), *shuffled(IN_ORDER, BACKWARDS, epoch=1)]
    ranks = [
        process(number, shuffled(IN_ORDER[number::2], order), drawn=(Drawn("train.py:9", (f"random:{number}",)),))
        for number, order in enumerate((IN_ORDER, other))
    ]
    check = checked(draws, run(ORIGINAL, process(0, original)), run(O0_TOGETHER, *ranks))
    assert check is not None
    assert (check.verdict, "train.py:9" in check.message) == (verdict, verdict == "disproved")


def shuffled(places: Sequence[int], order: Sequence[int], epoch: int = 0) -> list[Batch]:
    """Batches from these places of a list whose samples are in this order."""
    return [
        replace(batch, contents=tuple(str(order[place]) for place in batch.samples))
        for batch in reading(places, LABELS, epoch, COUNT * epoch // 2)
    ]


# ---- state that is carried on ----------------------------------------------------------------------------------------


def carrying(order: Sequence[int], *of_ranks: Sequence[int], sites: Sequence[str] = ("train.py:30",)) -> Check | None:
    ranks = [process(number, reading(part, LABELS), carried=tuple(sites)) for number, part in enumerate(of_ranks)]
    return checked(carried, run(ORIGINAL, process(0, reading(order, LABELS))), run(O0_TOGETHER, *ranks))


def test_rows_in_which_samples_follow_each_other_as_before_are_proved_and_others_are_open() -> None:
    # Batches of two: in a row each sample is followed by the next but one.
    kept = carrying(IN_ORDER, IN_ORDER[:18], IN_ORDER[18:])
    shared_out = carrying(IN_ORDER, IN_ORDER[::2], IN_ORDER[1::2])
    assert kept is not None
    assert shared_out is not None
    assert (kept.verdict, shared_out.verdict) == ("proved", "unproved")
    assert "train.py:30" in shared_out.message


def test_nothing_is_said_where_no_state_is_carried_or_rows_follow_each_other_by_chance() -> None:
    assert carrying(IN_ORDER, IN_ORDER[::2], IN_ORDER[1::2], sites=()) is None
    assert carrying([*IN_ORDER[5:], *IN_ORDER[:5]], IN_ORDER[::2], IN_ORDER[1::2]) is None


# ---- what is trained -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("second", "state", "verdict"), [("b", "1", "unproved"), ("b", "0", None), ("a", "1", None)])
def test_ranks_that_train_other_parts_by_draws_of_their_own_are_open(
    second: str, state: str, verdict: str | None
) -> None:
    batches = reading(IN_ORDER, LABELS)
    ranks = [
        process(number, batches, reached=((part, 4),), drawn=(Drawn("train.py:25", (f"random:{own}",)),))
        for number, (part, own) in enumerate((("a", "0"), (second, state)))
    ]
    check = checked(steering, run(ORIGINAL, process(0, batches)), run(O0_TOGETHER, *ranks))
    assert check is not None
    assert check.verdict == (verdict or "proved")
    assert ("train.py:25" in check.message) == (verdict is not None)


# ---- a schedule that is given a metric every so many steps -----------------------------------------------------------


@pytest.mark.parametrize(("every", "verdict"), [(3, "unproved"), (9, "proved")])
def test_a_metric_that_is_given_every_so_many_steps_comes_later_on_several_processes(every: int, verdict: str) -> None:
    """Nine steps are a pass of one process of two, eighteen one of the original."""

    def trained(number: int, places: Sequence[int], gap: int) -> RankTrace:
        batches = [batch for epoch in range(3) for batch in reading(places, LABELS, epoch, epoch * len(places) // 2)]
        updates = tuple(Update(0, step + 1, 1.0, 0.1) for step in range(len(batches)))
        metrics = tuple((step, 0.5) for step in range(gap, len(batches) + 1, gap))
        made = replace(process(number, batches), updates=updates, metrics=metrics)
        return replace(made, metric_sites=("train.py:50",) * len(metrics))

    ranks = [trained(number, IN_ORDER[number::2], every) for number in range(2)]
    original = trained(0, IN_ORDER, every if every < 9 else 2 * every)
    check = checked(rates, run(ORIGINAL, original), run(O0_TOGETHER, *ranks))
    assert check is not None
    assert (check.verdict, "train.py:50" in check.message) == (verdict, verdict == "unproved")


# ---- a level that the script's own arithmetic does not go with -------------------------------------------------------


@pytest.mark.parametrize(("level", "verdict"), [("O2", "unproved"), ("O1", "disproved")])
def test_types_that_a_script_mixes_itself_are_open_where_o1_gets_through(level: str, verdict: str) -> None:
    batches = reading(IN_ORDER, LABELS)
    message = "RuntimeError: dot : expected both vectors to have same dtype, but found Float and BFloat16"
    broken = replace(run(level), level=level, processes=1, status="failed", failure=Failure(message))
    traces = [run(name, process(0, batches)) for name in (ORIGINAL, O0)]
    through = [replace(run("O1", process(0, batches)), level="O1")] if level != "O1" else []
    check = checked(checks_of_runs, *traces, *through, broken)
    assert check is not None
    assert check.verdict == verdict


# ---- what the recorder follows ---------------------------------------------------------------------------------------

BODY = """
def decay(parameters):
    for parameter in parameters:
        parameter.grad += 0.1 * parameter.detach()


def jolt():
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)


for epoch in range(2):
    order = random.sample(range(8), 8)
    for x, y in DataLoader(data, batch_size=8):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        decay(model.parameters())
        optimizer.step()
        print(loss.item().hex())
    jolt()
print(order)
"""
CARRIED = """
network = nn.GRU(6, 6, batch_first=True)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
state = None
for x, y in DataLoader(data, batch_size=4):
    result, state = network(x[:, None], state)
    state = CARRIED
    result.square().mean().backward()
    optimizer.step()
"""


def line_of(text: str, part: str) -> str:
    return f"train.py:{next(n for n, line in enumerate((HEAD + text).splitlines(), 1) if part in line)}"


@pytest.mark.heavy
@FORKS
def test_a_script_whose_lines_are_followed_computes_what_it_does_without(record: Record) -> None:
    runs: tuple[tuple[str, dict[str, int]], ...] = (("followed", {"ways": 1}), ("plain", {}))
    followed, plain = (record(BODY, seed=3, folder=folder, **more) for folder, more in runs)
    assert followed.stdout == plain.stdout
    assert followed.rank.parameters == plain.rank.parameters
    assert followed.rank.generators == plain.rank.generators
    assert plain.rank.followed == Followed()


@pytest.mark.heavy
@FORKS
def test_lines_that_change_weights_or_gradients_or_draw_are_named(record: Record) -> None:
    found = record(BODY, ways=1).rank.followed
    changes = {change.what: change for change in reversed(found.changed)}
    assert changes["gradients"] == Changed("gradients", (line_of(BODY, "parameter.grad +="),), 1)
    assert changes["weights"] == Changed("weights", (line_of(BODY, "parameter.mul_"),), 4)
    assert line_of(BODY, "random.sample") in {drawn.site for drawn in found.drawn}
    assert len(found.ways) == 9
    assert found.ways[1] == found.ways[2] != found.ways[4]
    assert Line(line_of(BODY, "jolt()"), "jolt()") not in found.ways[1]
    assert {count for _, count in found.reached} == {4}


@pytest.mark.heavy
@FORKS
@pytest.mark.parametrize(("goes_on", "is_carried"), [("state.detach()", True), ("None", False)])
def test_state_that_a_module_is_given_again_is_noticed(record: Record, goes_on: str, is_carried: bool) -> None:
    body = CARRIED.replace("CARRIED", goes_on)
    sites = record(body, ways=1).rank.followed.carried
    assert sites == ((line_of(body, "network(x"),) if is_carried else ())


@pytest.mark.heavy
@FORKS
def test_lines_that_take_the_order_of_a_set_are_told_by_their_text(record: Record) -> None:
    body = """
    names = {"a", "b"}
    numbers = {name: number for number, name in enumerate(names)}
    ordered = [name for name in sorted(set(numbers))]
    model(data[:4][0]).sum().backward()
    """
    assert record(body, ways=1).rank.followed.unordered == (line_of(body, "enumerate(names)"),)
