"""What ``--target torch`` must keep of every script that the other proofs migrate, seen by running it.

The runtime cannot be imported in any of these runs. Two processes are held against one that trains on the batches that
their samplers give together; all runs are judged as ``amp-migrate verify`` judges them.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable
from typing import Any

import pytest
from plain_proofs import EXTENDED, NOT_IN_TORCH, OPEN, READ_THE_LAUNCHER, PlainProofs, plain_scripts
from proofs import Script, param
from test_proof import saved_files, tail_difference, without_numbers, without_scale

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
]

SCRIPTS = plain_scripts()
IN_EVERY_RUN = {"clip_value_and_norm_logging", "cyclegan_like", "function_mnist", "trainer_class"}
"""Those that are run in half and in several processes in every run of the tests: the others only in the whole one."""

UNITS = ("precision", "distribution")


def in_torch(script: Script, unit: str) -> str:
    """What becomes of a script in plain PyTorch."""
    if unit in NOT_IN_TORCH.get(script.name, {}):
        return "declined"
    if unit == "distribution" and script.name in EXTENDED:
        return "extended"
    return str(getattr(script, unit))


def scripts(keep: Callable[[Script], Any], *, all_in_every_run: bool = False) -> pytest.MarkDecorator:
    """The scripts that are kept."""
    return pytest.mark.parametrize(
        "script",
        [
            param(script, marks=[] if all_in_every_run or script.name in IN_EVERY_RUN else [pytest.mark.slow])
            for script in SCRIPTS
            if keep(script)
        ],
    )


def gets_through_in_half(script: Script, plain_proofs: PlainProofs) -> None:
    """Skip what no migration can bring about: torch may have no kernel for a layer in half on this processor."""
    if plain_proofs.plain_autocast(script).status:
        pytest.skip("the original fails under torch's own autocast here")


def is_half_on_cuda_alone(script: Script, plain_proofs: PlainProofs) -> bool:
    """Whether the migrated script leaves the CPU in FP32: torch has no LSTM in half for some processors."""
    texts = [change.after for change in plain_proofs.migrated(script).report.changes]
    return any("USE_AMP = torch.cuda.is_available() and" in text for text in texts)


def changes(script: Script) -> bool:
    return "migrated" in (in_torch(script, "precision"), in_torch(script, "distribution"))


def is_for_apex(script: Script) -> bool:
    """Whether the original that it is compared with has Apex switched off, and the migrated one does not."""
    return script.name.startswith("apex_")


def unfused(saved: Any) -> Any:
    """What was saved, without whether an optimizer's kernel is fused, which it is in half."""
    if isinstance(saved, dict):
        return {key: None if key == "fused" else unfused(value) for key, value in saved.items()}
    return [unfused(value) for value in saved] if isinstance(saved, list) else saved


def shares_out(script: Script) -> bool:
    return in_torch(script, "distribution") == "migrated"


def test_what_torch_has_no_words_for_is_of_scripts_that_are_there() -> None:
    names = {script.name for script in SCRIPTS}
    assert set(NOT_IN_TORCH) <= names and set(OPEN) <= names
    assert {script.name for script in SCRIPTS if shares_out(script)} >= IN_EVERY_RUN


@scripts(lambda script: True, all_in_every_run=True)
def test_it_declines_what_is_listed_and_nothing_else(script: Script, plain_proofs: PlainProofs) -> None:
    report = plain_proofs.migrated(script).report
    codes = {unit: sorted({one.code for one in report.refusals if one.unit == unit}) for unit in UNITS}
    for unit in UNITS:
        expected = in_torch(script, unit)
        found = getattr(report, unit)
        reasons = "\n".join(f"{one.code} {one.message}" for one in report.refusals)
        assert found == expected or expected == "unknown", f"{unit}: {found}, not {expected}\n{reasons}"
        listed = NOT_IN_TORCH.get(script.name, {}).get(unit)
        # Where precision is declined, nothing more needs to be said of several processes.
        assert listed is None or listed in (codes[unit] or codes["precision"]), codes
    assert all(one.message and one.recipe for one in report.refusals)
    assert bool(report.changes) == (changes(script) or script.name in READ_THE_LAUNCHER)


@scripts(changes)
def test_a_second_migration_changes_nothing(script: Script, plain_proofs: PlainProofs) -> None:
    for change in plain_proofs.again(script).changes:
        pytest.fail("".join(difflib.unified_diff(change.before.splitlines(True), change.after.splitlines(True))))


@scripts(changes, all_in_every_run=True)
def test_nothing_of_the_runtime_is_left(script: Script, plain_proofs: PlainProofs) -> None:
    for change in plain_proofs.migrated(script).report.changes:
        assert "amp_runtime" not in change.after


@scripts(changes, all_in_every_run=True)
def test_at_O0_it_repeats_the_original_bit_for_bit(script: Script, plain_proofs: PlainProofs) -> None:
    original, migrated = plain_proofs.original(script).check(), plain_proofs.at(script, "O0").check()
    assert migrated.losses == original.losses
    assert migrated.parameters == original.parameters
    if is_for_apex(script):
        # With Apex it says so, and saves the state of its scaler.
        return
    assert migrated.stdout == original.stdout
    assert without_scale(migrated.folder, original.folder) == saved_files(original.folder)


@pytest.mark.half
@scripts(lambda script: in_torch(script, "precision") == "migrated")
def test_at_O1_the_losses_stay_within_the_stated_tolerance(script: Script, plain_proofs: PlainProofs) -> None:
    gets_through_in_half(script, plain_proofs)
    original, migrated = plain_proofs.original(script).check(), plain_proofs.at(script, "O1").check()
    before, after = original.losses[0], migrated.losses[0]
    assert len(after) == len(before)
    assert all(map(math.isfinite, after))
    if is_half_on_cuda_alone(script, plain_proofs):
        assert after == before
    else:
        assert after != before, "bf16 left no trace: autocast was never on"
    assert tail_difference(before, after) <= script.o1_rel_tol
    if not is_for_apex(script):
        saved = without_scale(migrated.folder, original.folder)
        assert unfused(saved) == unfused(saved_files(original.folder))


@pytest.mark.half
@pytest.mark.parametrize("level", ["O0", "O1"])
@scripts(lambda script: shares_out(script) or (script.distribution == "already" and changes(script)))
def test_two_processes_see_other_data_and_keep_the_same_parameters(
    script: Script, level: str, plain_proofs: PlainProofs
) -> None:
    if level != "O0":
        gets_through_in_half(script, plain_proofs)
    run = plain_proofs.together_at(script, level).check()
    first, second = run.losses
    assert len(first) == len(second)
    assert all(map(math.isfinite, first + second))
    # The first one may be of noise, which all ranks draw alike.
    assert first != second, "both ranks trained on the same data"
    assert run.parameters[0] and run.parameters[0] == run.parameters[1]


@scripts(lambda script: shares_out(script) and not is_for_apex(script))
def test_two_processes_save_what_one_process_saves(script: Script, plain_proofs: PlainProofs) -> None:
    gets_through_in_half(script, plain_proofs)
    original, run = plain_proofs.original(script), plain_proofs.together_at(script, "O1").check()
    saved, expected = without_scale(run.folder, original.folder), saved_files(original.folder)
    assert without_numbers(unfused(saved)) == without_numbers(unfused(expected))


@pytest.mark.half
@scripts(changes)
def test_no_check_of_verify_speaks_against_it(script: Script, plain_proofs: PlainProofs) -> None:
    found = {check.id: check for check in plain_proofs.judged(script).checks}
    wrong = [f"{check.id}: {check.message}" for check in found.values() if check.verdict == "disproved"]
    assert not wrong
    gets_through_in_half(script, plain_proofs)
    open_ = {check.id for check in found.values() if check.verdict == "unproved"}
    if is_half_on_cuda_alone(script, plain_proofs):
        open_ -= {"o1-half", "o1-together-half"}
    assert open_ == set(OPEN.get(script.name, ())), [found[name].message for name in open_]
    assert not shares_out(script) or {"ranks-agree", "one-process"} <= set(found)
