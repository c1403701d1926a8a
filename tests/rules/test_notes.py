"""What is noted stands at its line, with its code, once, and in the same order every time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan import notes
from amp_rules.plan.note_pages import all_noted
from amp_rules.plan.options import Options
from amp_rules.plan.report import Note, Report
from amp_rules.source.spans import Position, Span
from migrating import FIXTURES

FOLDER = FIXTURES / "notes"
SCRIPTS = sorted(FOLDER.rglob("*.py"))
OF_FILES = {"AMP183", "AMP184", "AMP481", "AMP482", "AMP483"}
"""About no line: their cases are those of plain PyTorch and of Apex."""


def noted(path: Path) -> Report:
    code = path.parent.name
    options = Options(
        ddp=True,
        opt_level="O1",
        shard=code == "AMP285",
        shard_eval=code == "AMP286",
        shard_embeddings=1000 if code == "AMP287" else None,
        switch=code == "AMP185",
        quantize="static" if code == "AMP181" else None,
    )
    return migrate(path, options)


def expected(path: Path) -> list[tuple[str, int]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        (code, number)
        for number, line in enumerate(lines, start=1)
        for code in re.findall(r"# expect: (AMP\d\d\d)", line)
    ]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_note_stands_at_its_line_and_is_told_once(path):
    code = path.parent.name
    found = [(note.code, note.line) for note in noted(path).notes if note.code == code]
    assert found == expected(path) and found


def test_a_rate_keeps_the_number_of_gpus_and_a_batch_does_not():
    told = [item.text for item in noted(FOLDER / "AMP280" / "times_the_gpus.py").notes if item.code == "AMP280"]
    rates = [text for text in told if "it stays right" in text]
    assert [text.partition("`")[2].partition("`")[0] for text in rates] == ["args.lr * num_gpus"]
    assert sum("remove the factor" in text for text in told) == 2


def test_what_rounds_to_the_gpus_is_no_factor():
    told = [item.text for item in noted(FOLDER / "AMP280" / "rounded_to_the_gpus.py").notes if item.code == "AMP280"]
    assert ["would be empty" in text for text in told] == [False, True]
    assert not any("remove the factor" in text for text in told)


def test_what_runs_at_the_last_step_too_is_not_said_to_run_never():
    ends = {}
    for name in ("last_step_by_the_bar", "several_in_an_epoch"):
        told = [item.text for item in noted(FOLDER / "AMP284" / f"{name}.py").notes if item.code == "AMP284"]
        ends[name] = any("never" in text for text in told)
    assert ends == {"last_step_by_the_bar": False, "several_in_an_epoch": True}


def test_the_name_of_a_file_is_no_number_that_is_shown():
    told = [item.text for item in noted(FOLDER / "AMP282" / "loss_that_a_model_gives.py").notes]
    assert [text.split(" is ")[0] for text in told if "no mean" in text] == ["`loss`"]


def test_an_evaluation_that_breaks_is_not_said_to_be_in_full():
    told = [item.text for item in noted(FOLDER / "AMP281" / "evaluation_of_one_batch.py").notes]
    assert [text.split(":")[0] for text in told if "every process" in text] == [
        "`test_loader` is evaluated up to the `break` by every process"
    ]


def test_an_evaluation_that_no_call_stops_is_in_full():
    told = [item.text for item in noted(FOLDER / "AMP281" / "evaluation_that_no_call_stops.py").notes]
    assert [text.split(":")[0] for text in told if "every process" in text] == [
        "`loader` is evaluated in full by every process"
    ]


def test_the_length_of_a_loader_that_is_evaluated_too_is_its_own():
    told = noted(FOLDER / "AMP281" / "divided_by_the_length_of_what_trains_too.py").notes
    assert not any("own length" in note.text for note in told)


def test_further_evaluations_are_named_with_their_places():
    told = [note.text for note in noted(FOLDER / "AMP281" / "three_evaluations.py").notes if note.code == "AMP281"]
    assert [text.rpartition("one process")[2] for text in told] == ["", "; so is `valid_loader` (line 31)"]


def test_a_batch_of_one_sample_is_not_called_small():
    told = [note.text for note in noted(FOLDER / "AMP280" / "batches_made_beforehand.py").notes]
    assert any("averages over N batches, one per process" in text for text in told)


def test_a_share_over_the_length_of_all_is_no_average_of_it():
    (text,) = [note.text for note in noted(FOLDER / "AMP288" / "sum_over_the_length_of_all.py").notes]
    assert text.endswith("it is shown divided by the length of all the data: about 1/N of its average")


def test_further_places_of_an_error_are_named_as_far_as_they_are_few():
    (gone,) = noted(FOLDER / "AMP288" / "exchange_that_torch_has_no_more.py").notes
    assert gone.text.endswith("; so it is at exchange_that_torch_has_no_more.py:28")
    (array,) = noted(FOLDER / "AMP288" / "array_in_a_file_of_all.py").notes
    named = [f"array_in_a_file_of_all.py:{array.line + further}" for further in (1, 2, 3)]
    assert array.text.endswith(f"; so it is at {', '.join(named)} and 1 more place")


def test_of_two_lists_the_one_whose_mean_is_reduced_is_not_named():
    path = FOLDER / "AMP288" / "means_of_lists_beside_one_that_is_reduced.py"
    (text,) = [note.text for note in noted(path).notes if "AMP233" in note.text]
    assert "`worst` keeps numbers" in text and "`errors`" not in text


def test_a_line_in_a_sentence_is_one_of_the_file_on_disk():
    path = FOLDER / "AMP288" / "noise_below_a_new_option.py"
    report = noted(path)
    seeds = path.read_text(encoding="utf-8").splitlines().index("    torch.manual_seed(0)") + 1
    assert any(edit.code == "AMP409" for edit in report.edits)
    assert any(f"seeded alike at line {seeds}," in note.text for note in report.notes)


def test_averages_of_the_first_process_over_all_data_are_no_share():
    told = [item.text for item in noted(FOLDER / "AMP288" / "average_beside_one_of_all_data.py").notes]
    (text,) = [text for text in told if "AMP233" in text]
    assert "`total`" in text and "`wrong`" not in text


def test_what_is_shown_as_a_part_of_a_loss_alone_is_not_named_beside_it():
    told = noted(FOLDER / "AMP282" / "outputs_that_a_loss_is_made_of.py").notes
    (text,) = [note.text for note in told if note.code == "AMP282"]
    assert text.startswith("`loss` is of one process's batch")


def test_the_count_of_a_bar_over_its_own_loader_is_that_of_one_process():
    (text,) = [note.text for note in noted(FOLDER / "AMP282" / "count_of_a_bar.py").notes if note.code == "AMP282"]
    assert text.endswith("what is shown of it covers only rank 0's share of the data")


def test_a_note_on_numbers_says_that_there_are_more():
    (text,) = [note.text for note in noted(FOLDER / "AMP282" / "more_of_the_batches.py").notes if note.code == "AMP282"]
    assert "`total` adds up" in text
    assert text.endswith("for all else that is shown of the training batches and not reduced")


@pytest.mark.parametrize(
    ("name", "more"),
    [("score_in_a_meter_of_losses", True), ("score_in_a_record_of_losses", True), ("record_of_losses_alone", False)],
)
def test_what_holds_other_numbers_beside_those_that_are_named_is_more(name, more):
    (text,) = [note.text for note in noted(FOLDER / "AMP282" / f"{name}.py").notes if note.code == "AMP282"]
    assert ("all else that is shown of the training batches" in text) == more


def test_the_terms_of_a_loss_are_named_beside_it():
    told = noted(FOLDER / "AMP288" / "terms_of_a_loss_of_drawn_batches.py").notes
    (text,) = [note.text for note in told if "AMP233" in note.text]
    assert "`far`, `loss`, `near` and `total_far` are made of the batches of one process" in text


def test_what_the_first_step_of_an_epoch_does_is_not_said_to_happen_never():
    told = [n.text for n in noted(FOLDER / "AMP284" / "from_the_first_step.py").notes if n.code == "AMP284"]
    said = [(text.split("`")[1], "never" in text) for text in told]
    assert said == [("step % 5", False), ("count % 5", True), ("step % 5", False), ("step % 5", False)]


def test_a_stream_that_one_process_is_ahead_in_gives_no_equal_numbers():
    report = noted(FOLDER / "AMP288" / "noise_behind_that_of_one_process.py")
    told = [note.text for note in report.notes if note.code == "AMP288"]
    assert ["draws from one stream of numbers in each" in text for text in told] == [True]


def test_every_code_has_its_cases_and_its_page():
    codes = {rule.code for rule in notes.ALL}
    assert {folder.name for folder in FOLDER.iterdir()} == codes - OF_FILES
    assert [rule.code for rule in all_noted()] == sorted(codes)
    assert all(rule.code[4] == "8" and rule.page for rule in all_noted())
    assert len({rule.name for rule in notes.ALL}) == len(codes)


def test_notes_come_in_order_each_once():
    def one(line: int, code: str) -> Note:
        return Note(Path("train.py"), Span(Position(line, 1), Position(line, 9)), code, "a-name", "a text")

    whole = Note(Path("train.py"), None, "AMP480", "a-name", "about the file")
    given = [one(9, "AMP280"), one(3, "AMP284"), one(3, "AMP281"), whole, one(9, "AMP280")]
    assert [(note.line, note.code) for note in notes.in_order(given)] == [
        (None, "AMP480"),
        (3, "AMP281"),
        (3, "AMP284"),
        (9, "AMP280"),
    ]


def test_a_file_with_a_sampler_that_an_import_does_not_find_is_named(tmp_path):
    script = (FOLDER / "AMP288" / "epoch_that_is_never_counted.py").read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text("import shares\n" + script, encoding="utf-8")
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "shares.py").write_text(
        "from torch.utils.data import DistributedSampler\n", encoding="utf-8"
    )
    report = migrate(tmp_path / "train.py", Options(ddp=True, opt_level="O1"))
    told = [note.line for note in report.notes if "`modules/shares.py`" in note.text]
    assert told == [1]


@pytest.mark.parametrize("line", ["args.batch_size //= dist.get_world_size()", "args.lr *= 2"])
def test_a_batch_that_is_divided_in_place_is_not_that_of_all(tmp_path, line):
    script = (FOLDER / "AMP288" / "batch_of_all_by_its_help.py").read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(
        script.replace("    train(args)", f"    {line}\n    train(args)"), encoding="utf-8"
    )
    report = migrate(tmp_path / "train.py", Options(ddp=True, opt_level="O1"))
    told = [note for note in report.notes if "the total of all by its help" in note.text]
    assert bool(told) is ("batch" not in line)


def test_a_script_can_have_no_note_and_has_none_without_processes():
    """That each has few is asked in `test_fixtures.py`."""
    report = noted(FIXTURES / "AMP231" / "loop_over_a_named_bar" / "before.py")
    assert report.distribution == "extended" and not any(note.code.startswith("AMP28") for note in report.notes)
    alone = migrate(FOLDER / "AMP281" / "evaluation_loader.py", Options())
    assert alone.precision == "migrated" and not alone.notes
