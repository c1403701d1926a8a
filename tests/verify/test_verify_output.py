"""The result as text, and the words for it that a report shares: nothing that another verification contradicts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from amp_migrate.verify.evidence import Check, Evidence, Measured, Speed, Verdict, from_json
from amp_migrate.verify.output import render
from amp_migrate.verify.words import in_the_way, memory_in_words, repeats, speed_range, until, worst_first

LOSSES = (2.5, 1.25, 0.625)


def run(name: str, level: str | None = None, **changed: object) -> Measured:
    usual = Measured(name, level, 1, "stopped", LOSSES, peak_memory=433 * 2**20, steps_bound=len(LOSSES))
    return replace(usual, **changed)  # type: ignore[arg-type]


def evidence(verdict: Verdict = "proved", **changed: object) -> Evidence:
    found = Evidence(
        script="train.py",
        arguments=("--epochs", "1"),
        verdict=verdict,
        summary="The sentence.",
        checks=(
            Check("o0-exact", "O0 repeats the original", verdict, "All 3 losses are the same."),
            Check("o0-scaled", "A loss scale changes no number", "proved", "No bit differs."),
        ),
        runs=(run("original"), run("O0", "O0"), run("O1", "O1", deviation=0.01)),
        steps=3,
        tolerance=0.05,
        device="cpu",
        versions={"torch": "2.13.0"},
        reach="to backward call 3, on the CPU.",
    )
    return replace(found, **changed)  # type: ignore[arg-type]


def last_paragraph(text: str) -> list[str]:
    return text.rstrip("\n").rpartition("\n\n")[2].splitlines()


@pytest.mark.parametrize(
    ("verdict", "first", "second"),
    [
        ("proved", "✓ proved: The sentence.", "  How far it reaches: to backward call 3, on the CPU."),
        ("unproved", "? not proved: The sentence.", "  How far it was compared: to backward call 3, on the CPU."),
        ("disproved", "✗ disproved: The sentence.", "  How far it was compared: to backward call 3, on the CPU."),
    ],
)
def test_the_text_ends_with_the_verdict_and_how_far_it_reaches(verdict: Verdict, first: str, second: str) -> None:
    assert last_paragraph(render(evidence(verdict), "never")) == [first, second]


def test_where_nothing_was_compared_nothing_is_said_to_reach() -> None:
    found = evidence("unproved", checks=(), reach="")
    assert last_paragraph(render(found, "never")) == ["? not proved: The sentence."]


def test_evidence_without_a_reach_has_an_end_all_the_same() -> None:
    text = render(evidence(reach=""), "never")
    assert last_paragraph(text)[1] == "  How far it reaches: to backward call 3 at most, on the CPU."


def table(found: Evidence) -> list[str]:
    return render(found, "never").split("\n\n")[1].splitlines()


def test_each_run_says_how_far_it_was_to_go() -> None:
    runs = (
        run("original", status="ended", steps_bound=None),
        run("O0", "O0", status="ended", steps_bound=4),
        run("O1", "O1"),
        run("O2", "O2", steps_bound=1),
        run("O3", "O3", steps_bound=None),
        run("O0, 2 processes", "O0", status="timeout", error="it had made some of its backward calls"),
        run("O0, 4 processes", "O0", status="failed", error="ValueError: no"),
    )
    assert [until(item) for item in runs] == [
        "its end",
        "its end (bound: 4 steps)",
        "its bound of 3 steps",
        "its bound of 1 step",
        "its bound of 3 steps",
        "its time was up",
        "an error",
    ]
    lines = table(evidence(runs=runs))
    assert lines[0].split() == ["run", "steps", "first", "loss", "last", "loss", "until"]
    assert lines[3].split() == ["O1", "3", "2.5", "0.625", "its", "bound", "of", "3", "steps"]
    # How far a run gets until its time is up is not the script's doing.
    assert lines[6].split() == ["O0,", "2", "processes", "2.5", "its", "time", "was", "up"]


@pytest.mark.parametrize("device", ["cpu", "NVIDIA H100"])
def test_a_machine_at_another_pace_gives_the_same_text(device: str) -> None:
    found = evidence(device=device)
    runs = tuple(replace(item, peak_memory=434 * 2**20) for item in found.runs)
    assert render(replace(found, runs=runs), "never") == render(found, "never")


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (433 * 2**20, "about 430 MiB"),
        (997 * 2**20, "about 0.97 GiB"),
        (1234 * 2**20, "about 1.2 GiB"),
        (37 * 2**30, "about 37 GiB"),
        (None, ""),
    ],
)
def test_memory_is_told_in_two_digits_and_of_a_gpu(size: int | None, words: str) -> None:
    measured = run("O1", "O1", peak_memory=size)
    assert memory_in_words(evidence(device="NVIDIA H100"), measured) == words
    assert memory_in_words(evidence(), measured) == ""


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(1.72, 1.88, "1.7 to 1.9×"), (1.8, 1.8, "1.8×"), (0.9, 1.21, "0.9 to 1.3×"), (0.043, 0.056, "0.04 to 0.06×")],
)
def test_a_speed_is_the_range_that_was_measured(low: float, high: float, words: str) -> None:
    speed = Speed("O1", "original", (low + high) / 2, low, high, 40)
    assert speed_range(speed) == words
    text = render(evidence(speeds=(speed,)), "never")
    assert f"note: O1 makes {words} the steps of original in the same time." in text
    assert "in the same time" not in render(evidence(), "never")


def test_losses_are_numbers_only_where_the_original_repeats_itself() -> None:
    same, other = run("original again", losses=LOSSES[:2]), run("original again", losses=(2.5, 1.26))
    repeated, varied = (evidence(runs=(*evidence().runs, again)) for again in (same, other))
    assert (repeats(evidence()), repeats(repeated), repeats(varied)) == (True, True, False)
    assert "0.625" in "\n".join(table(repeated)) and "varies" not in render(repeated, "never")
    assert "0.625" not in "\n".join(table(varied)) and "note: The script is not reproducible" in render(varied, "never")


def test_what_is_in_the_way_is_what_the_verdict_rests_on() -> None:
    assert in_the_way(evidence()) == ()
    mixed = evidence("disproved", checks=(*evidence("unproved").checks, *evidence("disproved").checks))
    assert [check.verdict for check in in_the_way(mixed)] == ["disproved"]
    assert [check.id for check in in_the_way(evidence("unproved"))] == ["o0-exact"]


def test_what_the_verdict_rests_on_stands_beside_it() -> None:
    checks = tuple(
        Check(f"{verdict}-{number}", "A title", verdict, "A message.")
        for number in range(2)
        for verdict in ("proved", "disproved", "unproved")
    )
    ids = [check.id for check in worst_first(checks)]
    assert ids == ["disproved-0", "disproved-1", "unproved-0", "unproved-1", "proved-0", "proved-1"]
    text = render(evidence("disproved", checks=checks), "never")
    places = [text.index(f"({id_})") for id_ in (*ids[4:], *ids[2:4], *ids[:2])]
    assert places == sorted(places)


def test_evidence_is_read_as_it_was_written_and_of_an_earlier_version_too() -> None:
    speed = Speed("O1", "original", 1.8, 1.7, 1.9, 40)
    found = evidence(speeds=(speed,))
    assert from_json(found.to_json()) == found
    document = json.loads(found.to_json())
    for key in ("reach", "speeds"):
        del document[key]
    for item in document["runs"]:
        del item["steps_bound"]
    read = from_json(json.dumps(document))
    assert (read.reach, read.speeds, read.runs[0].steps_bound) == ("", (), None)
