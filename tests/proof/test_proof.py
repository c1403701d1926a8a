"""What the migration of every script in fixtures/runnable and fixtures/projects must keep, seen by running it."""

from __future__ import annotations

import difflib
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from amp_rules.torch.checkpoints import SCALER_KEYS
from proofs import PROJECTS, Proofs, Script, all_scripts, param

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
]

SCRIPTS = [*all_scripts(), *all_scripts(PROJECTS)]
OUTCOMES = {"migrated", "declined", "already"}
BY_TORCHRUN = {"flat_convnet", "seq_package"}
"""For whom the launcher itself is tried in every run of the tests."""


def scripts(keep: Any = lambda script: True) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("script", [param(script) for script in SCRIPTS if keep(script)])


def changes(script: Script) -> bool:
    return "migrated" in (script.precision, script.distribution)


def trains(script: Script) -> bool:
    return script.precision != "absent"


def test_there_are_scripts_of_every_outcome() -> None:
    assert len(SCRIPTS) >= 22
    assert {script.precision for script in SCRIPTS if trains(script)} == OUTCOMES
    assert {script.distribution for script in SCRIPTS if trains(script)} == OUTCOMES


@scripts(trains)
def test_the_original_trains(script: Script, proofs: Proofs) -> None:
    losses = proofs.original(script).check().losses[0]
    assert losses and all(map(math.isfinite, losses))


# Of the fixtures, and not of the program: the others say nothing where these fail.


@pytest.mark.slow
@scripts(trains)
def test_the_original_gives_the_same_losses_twice(script: Script, proofs: Proofs) -> None:
    first, second = proofs.original(script).check(), proofs.original(script, "second").check()
    assert second.losses == first.losses
    assert second.parameters == first.parameters
    assert second.stdout == first.stdout


@pytest.mark.slow
@scripts(trains)
def test_the_original_trains_for_as_many_steps_as_it_is_told(script: Script, proofs: Proofs) -> None:
    short, whole = proofs.original(script, "short", STEPS="2").check(), proofs.original(script).check()
    assert len(short.losses[0]) < len(whole.losses[0])


@scripts()
def test_the_report_says_what_is_expected(script: Script, proofs: Proofs) -> None:
    migrated = proofs.migrated(script)
    report = migrated.report
    reasons = "\n".join(f"{refusal.code} {refusal.message}" for refusal in report.refusals)
    found = (report.precision, report.distribution)
    assert found == (script.precision, script.distribution), reasons
    declined = {unit for unit in ("precision", "distribution") if getattr(report, unit) == "declined"}
    # Nothing is left alone without a reason and a recipe.
    assert declined <= {refusal.unit for refusal in report.refusals}
    assert all(refusal.message and refusal.recipe for refusal in report.refusals)
    assert bool(report.changes) == changes(script)


@scripts(changes)
def test_the_migrated_files_are_valid_and_stay_as_they_are(script: Script, proofs: Proofs) -> None:
    migrated = proofs.migrated(script)
    for change in migrated.report.changes:
        compile(change.path.read_bytes(), str(change.path), "exec")
        if "\n" not in change.before.replace("\r\n", ""):
            assert "\n" not in change.after.replace("\r\n", "")
        if "\n\t" in change.before and "\n    " not in change.before:
            assert "\n    " not in change.after
    second = list(migrated.again.changes)
    assert not second, "".join(
        difflib.unified_diff(second[0].before.splitlines(True), second[0].after.splitlines(True))
    )


@scripts(lambda script: not changes(script) and not script.entries)
def test_a_script_left_alone_keeps_every_byte(script: Script, proofs: Proofs) -> None:
    folder = proofs.migrated(script).folder
    for path in folder.rglob("*.py"):
        assert path.read_bytes() == (script.folder / path.relative_to(folder)).read_bytes()


@scripts(changes)
def test_at_O0_the_migrated_script_repeats_the_original_bit_for_bit(script: Script, proofs: Proofs) -> None:
    original, migrated = proofs.original(script), proofs.alone(script)["O0"].check()
    assert migrated.losses == original.losses
    assert migrated.parameters == original.parameters
    assert migrated.stdout == original.stdout
    assert without_scale(migrated.folder, original.folder) == saved_files(original.folder)


@pytest.mark.half
@scripts(lambda script: script.precision == "migrated")
def test_at_O1_the_losses_stay_within_the_stated_tolerance(script: Script, proofs: Proofs) -> None:
    original, migrated = proofs.original(script), proofs.alone(script)["O1"].check()
    before, after = original.losses[0], migrated.losses[0]
    assert len(after) == len(before)
    assert all(map(math.isfinite, after))
    assert after != before, "bf16 left no trace: autocast was never on"
    assert tail_difference(before, after) <= script.o1_rel_tol
    assert without_scale(migrated.folder, original.folder) == saved_files(original.folder)


@pytest.mark.half
@scripts(lambda script: script.distribution in ("migrated", "already"))
def test_two_processes_see_other_data_and_keep_the_same_parameters(script: Script, proofs: Proofs) -> None:
    run = proofs.together(script).check()
    assert len(run.losses) == 2
    first, second = run.losses
    assert len(first) == len(second)
    assert all(map(math.isfinite, first + second))
    assert first[0] != second[0], "both ranks trained on the same data"
    assert run.parameters[0] and run.parameters[0] == run.parameters[1]


@pytest.mark.parametrize(
    "script",
    [
        param(script, marks=[] if script.name in BY_TORCHRUN else [pytest.mark.slow])
        for script in SCRIPTS
        if script.distribution in ("migrated", "already")
    ],
)
def test_processes_that_torchrun_starts_give_the_same_numbers(script: Script, proofs: Proofs) -> None:
    forked, run = proofs.together(script).check(), proofs.by_torchrun(script).check()
    assert (run.losses, run.parameters) == (forked.losses, forked.parameters)


@scripts(lambda script: script.distribution == "migrated")
def test_two_processes_save_what_one_process_saves(script: Script, proofs: Proofs) -> None:
    original, run = proofs.original(script), proofs.together(script).check()
    saved, expected = without_scale(run.folder, original.folder), saved_files(original.folder)
    assert without_numbers(saved) == without_numbers(expected)


def tail_difference(before: list[float], after: list[float]) -> float:
    """How far the mean of the last third moved, relative to the mean size of those losses.

    Relative to the mean itself it would say nothing about losses of both signs, as a critic has.
    """
    start = len(before) - max(1, len(before) // 3)
    moved = abs(math.fsum(after[start:]) - math.fsum(before[start:]))
    return moved / math.fsum(map(abs, before[start:]))


def saved_files(folder: Path) -> dict[str, Any]:
    """The files that a script wrote, each with the structure of what torch.load finds in it."""
    import torch

    saved: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".pyc") or not path.is_file():
            continue
        try:
            saved[str(path.relative_to(folder))] = structure(torch.load(path, weights_only=True))
        except Exception:
            # A table, an array, or a pickle of the script's own classes.
            saved[str(path.relative_to(folder))] = None
    return saved


def without_scale(folder: Path, original: Path) -> dict[str, Any]:
    """What a migrated script saved, but for the loss scale where the original has none: AMP118 adds it."""
    kept = {key for content in saved_files(original).values() if isinstance(content, dict) for key in content}
    added = set(SCALER_KEYS) - kept
    return {
        name: {key: item for key, item in content.items() if key not in added} if isinstance(content, dict) else content
        for name, content in saved_files(folder).items()
    }


def without_numbers(saved: dict[str, Any]) -> dict[str, Any]:
    """Half the batches: a file that is named for its step may have another number, or fewer of its kind."""
    return {re.sub(r"\d+", "#", name): content for name, content in saved.items()}


def structure(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape)]
    if isinstance(value, dict):
        return {key: structure(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [structure(item) for item in value]
    return type(value).__name__
