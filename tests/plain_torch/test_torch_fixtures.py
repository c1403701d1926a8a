"""Every pair of scripts of ``fixtures/torch``: before, and after in plain PyTorch's words."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from amp_rules.plan.options import Options

sys.path.insert(0, str(Path(__file__).parents[1] / "rules"))

from migrating import FIXTURES, Case, migrated

CASES = [Case(folder) for folder in sorted((FIXTURES / "torch").iterdir()) if folder.is_dir()]


def options_of(case: Case) -> Options:
    """What is asked for: one process, unless ``options.toml`` says otherwise."""
    file = case.folder / "options.toml"
    asks = file.exists() and any(line.startswith("ddp") for line in file.read_text().splitlines())
    return replace(case.options, target="torch", ddp=case.options.ddp if asks else False)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.folder.name)
def test_the_script_becomes_the_one_beside_it(case: Case, tmp_path: Path) -> None:
    _, result = migrated(tmp_path, case.before, options_of(case))
    assert {name: text.decode() for name, text in result.items()} == {
        name: text.decode() for name, text in case.after.items()
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.folder.name)
def test_nothing_of_the_runtime_is_left(case: Case) -> None:
    for text in case.after.values():
        assert b"amp_runtime" not in text
        ast.parse(text)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.folder.name)
def test_a_second_run_changes_nothing(case: Case, tmp_path: Path) -> None:
    report, _ = migrated(tmp_path, case.after, options_of(case))
    assert report.changes == ()
    assert not any(note.code == "AMP180" for note in report.notes)
