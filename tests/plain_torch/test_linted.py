"""amp-lint finds nothing in what --target torch writes that it does not find in the original."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.checks import all_checks
from amp_rules.lint import Linter, Mode
from amp_rules.plan.options import Options
from amp_rules.source.text import read_source

FIXTURES = Path(__file__).parent.parent.parent / "fixtures"
PLAIN = sorted(path.parent for path in FIXTURES.glob("AMP[1234]*/*/before.py"))
RUNNABLE = sorted(path for kind in ("runnable", "apex") for path in (FIXTURES / kind).iterdir())
FIRST = [next(path for path in PLAIN if path.parent == code) for code in sorted({path.parent for path in PLAIN})]
MODES = [
    Mode(level, dtype, device, ddp)
    for level in ("O1", "O2", "O3")
    for dtype in ("fp16", "bf16")
    for device in ("cuda", "cpu")
    for ddp in (False, True)
]
TOLD = {
    "AMP821": "schedules count skipped steps on either target; the script's own are kept",
}
"""What it does find, each with the reason why the migration leaves it."""
_ALONE = {
    "gram_and_distances": "AMP701 at O2: autocast computes the square in float32 at O1, for which it is written",
    "noop_scores_and_losses": "AMP701 at O2: plain torch gives losses half outputs, and leaves them as they are",
    "noop_kept_by_a_comment": "a comment of the user's keeps it",
    "noop_run_that_configures": "AMP903: each process needs the configuration of the run",
    "noop_run_that_keeps_its_settings": "AMP903: each process needs the settings of the run",
    "noop_settings_of_a_sweep": "AMP903: each process needs the settings of the run",
    "noop_run_that_gives_data": "AMP903: each process needs the data of the run",
    "sign_in_steps_of_an_attack": "AMP812 takes the sign of a gradient that is added for the gradient itself",
    "noop_opened_for_both_and_read": "AMP903 takes a file that is opened for both for one that is written",
    "saved_under_another_name": "AMP903 takes a method of the script's own, run by one process, for a library's",
    "slopes_of_a_potential": "AMP713: the linter does not know that a model's own callers give it no half tensors",
    "some_of_a_list_are_none": "AMP813 and AMP814 take the one optimizer of a list for the same in each turn of a loop",
}


def findings(linter: Linter, paths: list[Path]) -> Counter[tuple[str, str]]:
    return Counter((path.name, item.code) for path in paths for item in linter.lint(read_source(path)).findings)


def new_findings(folder: Path, tmp_path: Path, modes: list[Mode]) -> list[str]:
    """What is found in the migrated files, and not in the originals, by mode."""
    entry = next((folder / name for name in ("before.py", "train.py", "main.py") if (folder / name).exists()), None)
    if entry is None or folder.name in _ALONE:
        return []
    changes = migrate(entry, Options(target="torch", ddp=True)).changes
    written = []
    for change in changes:
        path = tmp_path / change.path.relative_to(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(change.after.encode())
        written.append(path)
    found = []
    for mode in modes:
        after = findings(Linter(mode, all_checks()), written)
        if any(code not in TOLD for _, code in after):
            before = findings(Linter(mode, all_checks()), [change.path for change in changes])
            found += [f"{code} in {name} ({mode})" for name, code in after - before if code not in TOLD]
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("folder", [*FIRST, *RUNNABLE], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_new_is_found(folder, tmp_path):
    assert new_findings(folder, tmp_path, [Mode("O1", "fp16", "cuda", True)]) == []


@pytest.mark.slow
@pytest.mark.parametrize("folder", [*PLAIN, *RUNNABLE], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_new_is_found_in_any_mode(folder, tmp_path):
    assert new_findings(folder, tmp_path, MODES) == []
