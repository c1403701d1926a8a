"""What the migration of every program in fixtures/apex must keep, seen by running it."""

from __future__ import annotations

import ast
import difflib
import math
import os
from typing import Any

import pytest
from apex_proofs import ApexProofs, ApexScript, Mode, all_apex_scripts
from proofs import param
from test_proof import saved_files, tail_difference

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
]

SCRIPTS = all_apex_scripts()


def scripts(keep: Any = lambda script: True) -> pytest.MarkDecorator:
    """Every program by imports, and by idiom where that is possible."""
    chosen = [
        param(script, mode)
        for script in SCRIPTS
        if keep(script)
        for mode in ("idiom", "compat")
        if mode == "compat" or script.by == "idiom"
    ]
    return pytest.mark.parametrize("script, mode", chosen)


each_script = pytest.mark.parametrize("script", [param(script) for script in SCRIPTS])


def test_there_are_programs_of_many_styles() -> None:
    assert len(SCRIPTS) >= 12
    assert {script.by for script in SCRIPTS} == {"idiom", "compat"}
    assert sum(script.distributes for script in SCRIPTS) >= 4


@each_script
def test_the_original_trains_without_apex(script: ApexScript, apex_proofs: ApexProofs) -> None:
    losses = apex_proofs.fp32(script).check().losses[0]
    assert len(losses) >= 12 and all(map(math.isfinite, losses))


@each_script
def test_the_report_says_how_it_was_done(script: ApexScript, apex_proofs: ApexProofs) -> None:
    report = apex_proofs.by(script, "auto").report
    assert report.precision == "migrated" and not report.refusals
    assert any(note.code == "AMP480" for note in report.notes) is (script.by == "compat")
    assert any(edit.code == "AMP410" for edit in report.edits) is (script.by == "compat")


@pytest.mark.parametrize("script", [param(script) for script in SCRIPTS if script.by == "compat"])
def test_the_idiom_alone_is_declined_with_a_reason(script: ApexScript, apex_proofs: ApexProofs) -> None:
    migrated = apex_proofs.by(script, "idiom")
    assert migrated.report.precision == "declined" and not migrated.report.changes
    assert {refusal.unit for refusal in migrated.report.refusals} == {"precision"}


@scripts()
def test_nothing_is_imported_from_apex(script: ApexScript, mode: Mode, apex_proofs: ApexProofs) -> None:
    migrated = apex_proofs.by(script, mode)
    for path in sorted(migrated.folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"apex", "amp_C"}, path


@scripts()
def test_a_second_migration_changes_nothing(script: ApexScript, mode: Mode, apex_proofs: ApexProofs) -> None:
    again = apex_proofs.by(script, mode).again
    assert again.precision == "already"
    for change in again.changes:
        pytest.fail("".join(difflib.unified_diff(change.before.splitlines(True), change.after.splitlines(True))))


@scripts()
def test_with_the_flag_off_nothing_differs(script: ApexScript, mode: Mode, apex_proofs: ApexProofs) -> None:
    original, migrated = apex_proofs.fp32(script).check(), apex_proofs.off(script, mode).check()
    if script.substitutes and mode == "compat":
        assert tail_difference(original.losses[0], migrated.losses[0]) <= 1e-3
        return
    assert migrated.losses == original.losses
    assert migrated.parameters == original.parameters
    assert saved_files(migrated.folder) == saved_files(original.folder)
    if mode == "idiom":  # Apex's interface reports the level it selects.
        assert migrated.stdout == original.stdout


@scripts()
def test_at_O0_the_numbers_are_those_of_the_flag_off(script: ApexScript, mode: Mode, apex_proofs: ApexProofs) -> None:
    original, migrated = apex_proofs.fp32(script).check(), apex_proofs.at(script, mode, "O0").check()
    before, after = original.losses[0], migrated.losses[0]
    assert len(after) == len(before)
    if script.o0_rel_tol == 0:
        assert after == before
        assert migrated.parameters == original.parameters
    else:
        assert tail_difference(before, after) <= script.o0_rel_tol


@pytest.mark.half
@pytest.mark.parametrize("level", ["O1", "O2"])
@scripts()
def test_at_higher_levels_the_losses_stay_within_tolerance(
    script: ApexScript, mode: Mode, level: str, apex_proofs: ApexProofs
) -> None:
    original, migrated = apex_proofs.fp32(script).check(), apex_proofs.at(script, mode, level).check()
    before, after = original.losses[0], migrated.losses[0]
    assert len(after) == len(before)
    assert all(map(math.isfinite, after))
    assert after != before, "the half type left no trace"
    assert tail_difference(before, after) <= script.rel_tol


@pytest.mark.half
@scripts(lambda script: script.more)
def test_all_that_it_has_of_apex_trains(script: ApexScript, mode: Mode, apex_proofs: ApexProofs) -> None:
    losses = apex_proofs.with_more(script, mode).check().losses[0]
    assert all(map(math.isfinite, losses))
    assert losses != apex_proofs.fp32(script).losses[0]


@pytest.mark.half
@scripts(lambda script: script.distributes)
def test_two_processes_keep_the_same_parameters(script: ApexScript, mode: Mode, apex_proofs: ApexProofs) -> None:
    run = apex_proofs.together(script, mode).check()
    assert len(run.losses) == 2
    first, second = run.losses
    assert len(first) == len(second) and all(map(math.isfinite, first + second))
    assert first[0] != second[0], "both ranks trained on the same data"
    assert run.parameters[0] and run.parameters[0] == run.parameters[1]


@pytest.mark.slow
@scripts(lambda script: script.distributes)
def test_processes_that_torchrun_starts_give_the_same_numbers(
    script: ApexScript, mode: Mode, apex_proofs: ApexProofs
) -> None:
    forked, run = apex_proofs.together(script, mode).check(), apex_proofs.by_torchrun(script, mode).check()
    assert (run.losses, run.parameters) == (forked.losses, forked.parameters)


@pytest.mark.half
def test_the_idiom_reads_the_scale_that_apex_saved(apex_proofs: ApexProofs) -> None:
    import amp_runtime
    import torch

    script = next(script for script in SCRIPTS if script.name == "trainer_attributes")
    saved = torch.load(apex_proofs.at(script, "compat", "O1").check().folder / "last.pth", weights_only=True)["amp"]
    assert set(saved) == {"loss_scaler0"}
    scaler = amp_runtime.Scaler()
    scaler.load_state_dict(saved)
    assert scaler.state_dict()["scale"] == saved["loss_scaler0"]["loss_scale"]
