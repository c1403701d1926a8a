"""The tool that measures what the linter finds of real bugs: on a repository that is made here."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

BUGGY = """
import torch


def attention(query, key, mask):
    scores = torch.matmul(query, key)
    scores = scores.masked_fill(mask, -1e9)
    return torch.softmax(scores, dim=-1)


def other(query, key, mask):
    return torch.matmul(query, key).masked_fill(mask, -1e9)
"""
FIXED = BUGGY.replace(
    "    scores = scores.masked_fill(mask, -1e9)",
    "    # The smallest number of the type.\n    scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)",
)
WRONG = 7
"""The line that the fix mends; `other` stays as it is."""


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("lint_recall")


@pytest.fixture
def commits(tmp_path: Path) -> list[str]:
    """A repository `one+bug` with the buggy, the fixed and a worse version."""
    folder = tmp_path / "git" / "one+bug"
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    return [commit(folder, text) for text in (BUGGY, FIXED, FIXED.replace("torch.finfo(scores.dtype).min", "-1e8"))]


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=one", "-c", "user.email=one@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path, text: str) -> str:
    (folder / "model.py").write_text(text)
    git(folder, "add", "model.py")
    git(folder, "commit", "--quiet", "-m", "a version")
    return git(folder, "rev-parse", "HEAD")


def bug(commits: list[str], **changes: object) -> dict[str, object]:
    facts = {
        "repo": "one/bug",
        "buggy_commit": commits[0],
        "fixed_commit": commits[1],
        "path": "model.py",
        "lines": [WRONG],
        "bug_class": "mask_const_overflow",
        "rules": ["AMP601"],
        "modes": ["O1 fp16 cuda"],
        "decided_by": "file",
    }
    return {**facts, **changes}


def judged(tool: ModuleType, tmp_path: Path, facts: dict[str, object]) -> object:
    trees = tool.Trees(tmp_path / "git", tmp_path / "trees")
    return tool.verdict(tool.bug_from(facts), trees, tool.Judge(preview=False))


def test_a_bug_is_found_and_its_fix_is_silent_although_the_neighbour_stays(
    tool: ModuleType, tmp_path: Path, commits: list[str]
) -> None:
    item = judged(tool, tmp_path, bug(commits))
    assert item.found and item.silent
    assert [found.first for found in item.hits["O1 fp16 cuda"]] == [WRONG]


def test_a_fix_that_mends_nothing_is_loud(tool: ModuleType, tmp_path: Path, commits: list[str]) -> None:
    item = judged(tool, tmp_path, bug(commits, fixed_commit=commits[2]))
    assert item.found and not item.silent
    assert judged(tool, tmp_path, bug(commits, fixed_commit=commits[2], mended=False)).silent


def test_what_does_not_fit_is_not_found(tool: ModuleType, tmp_path: Path, commits: list[str]) -> None:
    other = judged(tool, tmp_path, bug(commits, rules=["AMP811"]))
    assert not other.found
    assert [found.code for found in other.others["O1 fp16 cuda"]] == ["AMP601"]
    assert not judged(tool, tmp_path, bug(commits, lines=[2])).found
    assert not judged(tool, tmp_path, bug(commits, modes=["O1 bf16 cuda"])).found, "bfloat16 holds the number"


def test_a_decoy_wants_silence(tool: ModuleType, tmp_path: Path, commits: list[str]) -> None:
    decoy = {"repo": "one/bug", "path": "model.py", "modes": ["O1 fp16 cuda"], "rules": []}
    assert judged(tool, tmp_path, {**decoy, "commit": commits[1], "lines": [WRONG + 1]}).silent
    assert not judged(tool, tmp_path, {**decoy, "commit": commits[0], "lines": [WRONG]}).silent


def test_lines_are_followed_over_a_change(tool: ModuleType) -> None:
    before = ["a", "b", "c", "d", "e"]
    assert tool.corresponding(before, ["new", "a", "b", "c", "d", "e"], [2]) == {3}
    assert tool.corresponding(before, ["a", "x", "y", "c", "d", "e"], [2]) == {2, 3}
    assert tool.corresponding(before, ["a", "c", "d", "e"], [2]) == {2}, "what is gone leaves its place"


def test_modes_are_written_out(tool: ModuleType) -> None:
    full_mode = importlib.import_module("lint_bugs").full_mode
    assert full_mode("ddp") == "O1 fp16 cuda ddp"
    assert full_mode("O3 bf16") == "O3 bf16 cuda"


def test_the_command_prints_a_table_and_the_code_of_what_was_missed(tmp_path: Path, commits: list[str]) -> None:
    listed = tmp_path / "bugs.json"
    missed = bug(commits, rules=["AMP811"], decided_by="project")
    listed.write_text(json.dumps({"bugs": [bug(commits), missed], "decoys": []}))
    script = [sys.executable, str(BENCHMARKS / "lint_recall.py"), "--missed"]
    where = ["--bugs", str(listed), "--checkouts", str(tmp_path / "git"), "--trees", str(tmp_path / "trees")]
    finished = subprocess.run([*script, *where], capture_output=True, text=True, timeout=100)
    assert finished.returncode == 0, finished.stderr
    assert "| **all** | 2 | 1 | 50 | 2 |" in finished.stdout
    assert "| decided by project | 1 | 0 | 0 | 1 |" in finished.stdout
    assert f">{WRONG:5d}     scores = scores.masked_fill(mask, -1e9)" in finished.stdout


def test_the_list_holds_facts_of_rules_that_there_are(tool: ModuleType) -> None:
    from amp_rules.checks import all_checks

    codes = {check.code for check in all_checks()}
    facts = json.loads(tool.BUGS.read_text(encoding="utf-8"))
    bugs = [tool.bug_from(item) for item in [*facts["bugs"], *facts["decoys"]]]
    assert not {code for item in bugs for code in item.rules} - codes
    assert all(item.lines and item.modes and item.decided_by in ("file", "project") for item in bugs)
    places = [(item.repo, item.commit, item.path, item.lines) for item in bugs]
    assert len(places) == len(set(places))
