"""What scripts/test.sh runs: no file of tests is left out of all of its modes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = (ROOT / "scripts/test.sh").read_text(encoding="utf-8")


@pytest.mark.heavy
def test_every_file_of_tests_has_some_in_full_or_is_a_campaign():
    # What they leave to the expression in pyproject.toml would not be all.
    assert re.search(r'^        twice -m "not campaign" "\$@"$', SCRIPT, re.MULTILINE)
    assert 'verify) tests -m campaign "$@"' in SCRIPT
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-3000:]
    collected = set(re.findall(r"^(tests/[\w/.]+\.py)::", done.stdout, re.MULTILINE))
    written = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"^    def test_|^def test_", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert collected == written


def test_each_mode_leaves_out_what_its_marker_says():
    assert 'tests -m "not slow and not heavy" "$@"' in SCRIPT
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "-m 'not slow and not campaign'" in pyproject
    markers = set(re.findall(r'^    "(\w+): .*`scripts/test\.sh \w+`', pyproject, re.MULTILINE))
    assert markers == {"slow", "in_turn", "heavy", "half", "campaign"}


def test_a_mode_draws_as_many_programs_as_it_says():
    # A number of its own would be the same in every mode. Ranks draw theirs together, so that they take the same turns.
    fixed = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"max_examples=\d", path.read_text(encoding="utf-8")) and path.parent.name != "ranks"
    ]
    assert fixed == []


@pytest.mark.heavy
def test_every_test_that_waits_for_its_turn_has_one():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "in_turn", "-p", "no:cacheprovider"]
    command += ["tests/proof", "tests/plain_torch/test_linted.py"]

    def collected(turn: str) -> list[str]:
        environment = os.environ | {"AMP_TEST_TURN": turn}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stdout[-3000:]
        return re.findall(r"^tests/.*::.*", done.stdout, re.MULTILINE)

    turns = [collected(f"{number}/4") for number in range(4)]
    every = collected("")
    assert sorted(name for turn in turns for name in turn) == sorted(every)
    assert all(len(every) / 8 < len(turn) < len(every) / 2 for turn in turns)
