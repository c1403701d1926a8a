"""Several agents of torchrun, as one on each machine, and processes that die."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from launching import Launcher, free_port
from restarting import SCRIPT, all_of, weights


def agents(script: Path, directory: Path, count: int, *options: str, **variables: str) -> list[str]:
    """What each agent of torchrun wrote to standard error; each has one process."""
    place = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "one"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(count), "--nproc-per-node", "1"]
    command += [*place, "--local-addr", "127.0.0.1", *options, str(script)]
    return all_of([(command, variables)] * count, directory)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def expected(script: Path, tmp_path: Path, launcher: Launcher) -> list[object]:
    """The weights of two processes under one agent that nothing disturbs."""
    (tmp_path / "quiet").mkdir()
    finished = launcher.together(script, tmp_path / "quiet")
    assert finished.returncode == 0, finished.stderr[-3000:]
    return weights(tmp_path / "quiet")


@pytest.mark.slow
def test_two_machines_train_what_one_does(script: Path, tmp_path: Path, expected: list[object]) -> None:
    agents(script, tmp_path, 2)
    assert weights(tmp_path) == expected


@pytest.mark.slow
def test_a_killed_process_costs_what_came_after_the_last_checkpoint(
    script: Path, tmp_path: Path, expected: list[object]
) -> None:
    killed = [random.Random(str(tmp_path)).randrange(2), random.Random(str(tmp_path)).randrange(1, 15)]
    agents(script, tmp_path, 2, "--max-restarts", "2", KILL=json.dumps(killed))
    assert (tmp_path / "killed").exists(), killed
    assert weights(tmp_path) == expected, killed
