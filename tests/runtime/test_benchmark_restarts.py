"""Workers that are killed at random: twice here, twenty times by hand. A run that ends otherwise is noticed."""

from __future__ import annotations

import importlib
import json
import random
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from test_benchmark_runs import BENCHMARKS, run

Lines = list[dict[str, Any]]


@pytest.mark.heavy
@pytest.mark.slow
def test_killed_workers_cost_what_came_after_the_last_checkpoint() -> None:
    seed = secrets.randbelow(1000)
    finished = run("restarts.py", "--kills", "2", "--seed", str(seed), seconds=900)
    assert finished.returncode == 0, (seed, finished.stdout, finished.stderr[-3000:])
    row = r"^\| \d+ \| rank \d after \d+, rank \d after \d+ \| \d+, \d+ \| \d, \d \| the same \| \d+ \|$"
    assert re.search(row, finished.stdout, re.MULTILINE), finished.stdout


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("restarts")


def undisturbed(rank: int) -> Lines:
    """What a rank would write: 20 steps in each of 3 epochs."""
    order = [random.Random(epoch).sample(range(160), 160) for epoch in range(3)]
    steps = [
        {"step": 20 * epoch + turn + 1, "epoch": epoch, "samples": order[epoch][8 * turn + 4 * rank :][:4], "loss": 0.5}
        for epoch in range(3)
        for turn in range(20)
    ]
    return [{"process": 1, "after": 0}, *steps]


def killed(rank: int) -> Lines:
    """A worker dies after its 30th step, and the checkpoint before has the number 28."""
    lines = undisturbed(rank)
    return [*lines[:31], {"process": 2, "after": 28}, *lines[29:]]


def one_step_left_out(lines: Lines) -> None:
    del lines[40]


def one_step_made_twice(lines: Lines) -> None:
    lines.insert(40, dict(lines[40]))


def other_samples(lines: Lines) -> None:
    lines[-1]["samples"] = lines[-2]["samples"]


def other_loss(lines: Lines) -> None:
    lines[50]["loss"] = 0.4999


def more_lost(lines: Lines) -> None:
    lines[31:32] = [{"process": 2, "after": 21}, *undisturbed(0)[22:29]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (None, ""),
        (one_step_left_out, "rank 0 left out a step after 28, or made one twice"),
        (one_step_made_twice, "rank 0 left out a step after 28, or made one twice"),
        (other_samples, "rank 0 has other samples or losses"),
        (other_loss, "rank 0 has other samples or losses"),
        (more_lost, "rank 0 had made 30 steps, and went on after 21"),
    ],
)
def test_what_ends_otherwise_is_noticed(
    change: Callable[[Lines], None] | None, says: str, restarts: ModuleType, tmp_path: Path
) -> None:
    for name, written in (("quiet", undisturbed), ("killed", killed)):
        (tmp_path / name).mkdir()
        torch.save({"model": {"weight": torch.ones(2)}}, tmp_path / name / "end.pt")
        for rank in (0, 1):
            lines = written(rank)
            if name == "killed" and rank == 0 and change is not None:
                change(lines)
            (tmp_path / name / f"rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert restarts.wrong(tmp_path / "killed", tmp_path / "quiet") == says


def test_other_weights_are_noticed(restarts: ModuleType) -> None:
    one = {"model": {"weight": torch.ones(2)}, "step": 60, "states": [(1, 2.0)]}
    other = {"model": {"weight": torch.tensor([1.0, 1.0000001])}, "step": 60, "states": [(1, 2.0)]}
    assert restarts.same(one, one) and not restarts.same(one, other)
    assert not restarts.same(one, one | {"step": 59}) and not restarts.same(one, one | {"states": []})
