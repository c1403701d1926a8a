"""What scripts/test.sh runs: no file of tests is left out of all of its modes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
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
    environment = {name: value for name, value in os.environ.items() if name != "AMP_TEST_TURN"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout[-3000:]
    collected = set(re.findall(r"^(tests/[\w/.]+\.py)::", done.stdout, re.MULTILINE))
    written = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"^    def test_|^def test_", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert collected == written


def test_what_is_marked_half_lies_in_the_folders_that_its_run_collects():
    folders = re.search(r"^HALF=\((.*)\)$", SCRIPT, re.MULTILINE)
    assert folders is not None
    marked = {
        path.parent.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if "pytest.mark.half" in path.read_text(encoding="utf-8") and path != Path(__file__)
    }
    assert sorted(marked) == sorted(folders[1].split())


def test_each_mode_leaves_out_what_its_marker_says():
    assert 'tests -m "not slow and not heavy" "$@"' in SCRIPT
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "-m 'not slow and not campaign'" in pyproject
    markers = set(re.findall(r'^    "(\w+): .*`scripts/test\.sh \w+`', pyproject, re.MULTILINE))
    assert markers == {"slow", "heavy", "half", "campaign"}


def test_a_mode_draws_as_many_programs_as_it_says():
    # A number of its own would be the same in every mode. Ranks draw theirs together, so that they take the same turns.
    fixed = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"max_examples=\d", path.read_text(encoding="utf-8")) and path.parent.name != "ranks"
    ]
    assert fixed == []


def test_every_test_has_its_turn(tmp_path: Path):
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text(encoding="utf-8"))
    lines = ["import pytest", "group = pytest.mark.xdist_group('fixture')", "numbers = range(60)"]
    for name, marks in {
        "light": "",
        "heavy": "@pytest.mark.heavy",
        "slow": "@pytest.mark.slow",
        "both": "@pytest.mark.heavy\n@pytest.mark.slow",
        "shared": "@pytest.mark.slow\n@group",
    }.items():
        lines += [*marks.split("\n"), "@pytest.mark.parametrize('number', numbers)", f"def test_{name}(number): pass"]
    (tmp_path / "test_marked.py").write_text("\n".join(lines))
    # Which of the turns a test would have, asked of the tests in a run of all.
    (tmp_path / "telling.py").write_text(
        "import conftest, pytest\n"
        "@pytest.hookimpl(wrapper=True)\n"
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items:\n"
        "        for turn in range(48):\n"
        "            if conftest._has_its_turn(item, str(turn)):\n"
        "                print('turn', turn, item.name)\n"
        "    return (yield)\n"
    )

    def collected(turn: str, *arguments: str, again: str = "") -> str:
        environment = os.environ | {"AMP_TEST_TURN": turn, "PYTHONPATH": str(ROOT / "tests/shared")}
        environment["AMP_TEST_AGAIN"] = again
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout[-3000:]
        return done.stdout

    # Where another run has tried them all, the light ones have turns too.
    for again, light in (("1", 12), ("", 48)):
        turns: dict[int, Counter[str]] = {number: Counter() for number in range(48)}
        told = collected("", "-p", "telling", again=again)
        for number, test in re.findall(r"^turn (\d+) (.*)$", told, re.MULTILINE):
            turns[int(number)][test] += 1
        # A run of one turn is of those tests.
        assert Counter(re.findall(r"::(test_\w+.*)", collected("7", again=again))) == turns[7]
        runs = sum(turns.values(), Counter[str]())
        by_test = {
            name: {runs[one] for one in runs if name in one} for name in ("light", "heavy", "slow", "both", "shared")
        }
        assert by_test == {"light": {light}, "heavy": {3}, "slow": {1}, "both": {1}, "shared": {1}}
        assert len(runs) == 300
    # What shares a fixture has its turn together, and the others are spread out.
    assert sorted(sum("shared" in one for one in turn) for turn in turns.values()) == [0] * 47 + [60]
    assert all(sum("slow" in one for one in turn) <= 10 for turn in turns.values())
