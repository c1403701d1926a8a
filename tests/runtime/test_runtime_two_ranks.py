"""Two real processes on gloo."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import two_rank_checks

pytest.importorskip("torch")

CHECKS = [name for name in vars(two_rank_checks) if name.startswith("check_")]


def launch(script: Path, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(port),
    ]
    clean = {k: v for k, v in os.environ.items() if k not in ("AMP_OPT_LEVEL", "RANK", "WORLD_SIZE", "LOCAL_RANK")}
    process = subprocess.Popen(
        [*command, str(script)],
        env={
            **clean,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "CHECK_DIR": str(directory),
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        stderr += "\nended after 100 s"
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """What each check ended with on each rank: an empty string or a traceback."""
    directory = tmp_path_factory.mktemp("two_ranks")
    finished = launch(Path(two_rank_checks.__file__), directory)
    found: dict[str, dict[int, str]] = {"": {0: finished.stderr}}
    for rank in (0, 1):
        report = directory / f"rank{rank}.jsonl"
        for line in report.read_text().splitlines() if report.exists() else []:
            name, problem = json.loads(line)
            found.setdefault(name, {})[rank] = problem
    return found


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(name: str, outcome: dict[str, dict[int, str]]) -> None:
    results = outcome.get(name, {})
    problems = [f"rank {rank}:\n{problem}" for rank, problem in results.items() if problem]
    assert not problems, "\n".join(problems)
    assert set(results) == {0, 1}, "not reached on both ranks\n" + outcome[""][0][-3000:]


def test_a_crash_of_one_rank_does_not_hang_the_other(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import amp_runtime as amp, torch\n"
        "amp.init('O0', ddp=True)\n"
        "model = amp.prepare_model(torch.nn.Linear(1, 1))\n"
        "if amp.rank() == 1: raise RuntimeError('one rank fails')\n"
        "model(torch.ones(1, 1)).sum().backward()\n"
    )
    finished = launch(script, tmp_path)
    assert finished.returncode != 0
    assert "one rank fails" in finished.stderr
