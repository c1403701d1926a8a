"""Real processes on gloo."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from launching import Launcher, torchrun

pytest.importorskip("torch")
pytestmark = pytest.mark.heavy

FILES = sorted(path for path in (Path(__file__).parent / "ranks").glob("*.py") if path.name != "support.py")


def contents(file: Path) -> tuple[list[str], tuple[int, ...]]:
    """The names of a file's checks and the numbers of ranks with which it wants to run."""
    checks, ranks = [], (2,)
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_"):
            checks.append(node.name)
        elif isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["RANKS"]:
            wanted = ast.literal_eval(node.value)
            ranks = wanted if isinstance(wanted, tuple) else (wanted,)
    return checks, ranks


# What passes with the first number of ranks rarely fails with another.
RUNS = [
    pytest.param(file, ranks, id=f"{file.stem}-{ranks}", marks=() if number == 0 else pytest.mark.slow)
    for file in FILES
    for number, ranks in enumerate(contents(file)[1])
]


@pytest.mark.parametrize(("file", "ranks"), RUNS)
def test_the_checks_pass_on_every_rank(file: Path, ranks: int, launcher: Launcher, tmp_path: Path) -> None:
    checks, _ = contents(file)
    assert checks
    finished = launcher.together(file, tmp_path, ranks)
    for rank in range(ranks):
        report = tmp_path / f"rank{rank}.jsonl"
        results = dict(json.loads(line) for line in report.read_text().splitlines()) if report.exists() else {}
        for name in checks:
            assert name in results, f"{name} was not reached on rank {rank}\n{finished.stderr[-3000:]}"
            assert not results[name], f"{name}, rank {rank}:\n{results[name]}"
    assert finished.returncode == 0, finished.stderr[-3000:]


@pytest.mark.parametrize("by", ["forks", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_a_crash_of_one_rank_does_not_hang_the_other(by: str, launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import amp_runtime as amp, torch\n"
        "amp.init('O0', ddp=True)\n"
        "model = amp.prepare_model(torch.nn.Linear(1, 1))\n"
        "if amp.rank() == 1: raise RuntimeError('one rank fails')\n"
        "model(torch.ones(1, 1)).sum().backward()\n"
    )
    finished = torchrun(script, tmp_path) if by == "torchrun" else launcher.together(script, tmp_path)
    assert finished.returncode != 0
    assert "one rank fails" in finished.stderr and "ended after" not in finished.stderr


TELLS = """
import atexit, sys, traceback, warnings
import amp_runtime as amp
amp.init("O0", ddp=True)
atexit.register(lambda: print("handler of the script", file=sys.stderr))
print("ordinary")
for _ in range(2):
    warnings.warn("of all ranks")
warnings.warn(f"of rank {amp.rank()}")
try:
    raise ValueError(f"caught on {amp.rank()}")
except ValueError:
    traceback.print_exc()
amp.barrier()
"""


def test_errors_of_every_rank_are_shown_and_a_warning_of_all_once(launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TELLS)
    finished = launcher.together(script, tmp_path, 3)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "ordinary\n"
    for rank in range(3):
        assert f"ValueError: caught on {rank}" in finished.stderr
        assert finished.stderr.count(f"UserWarning: of rank {rank}") == 1
    assert finished.stderr.count("UserWarning: of all ranks") == 1


@pytest.mark.parametrize("threads", [False, True])
def test_a_rank_that_failed_ends_though_its_group_or_threads_would_not(
    threads: bool, launcher: Launcher, tmp_path: Path
) -> None:
    """As on NCCL, where the end of a group waits for exchanges that the others never join."""
    script = tmp_path / "train.py"
    script.write_text(
        f"{TELLS}"
        "import threading, time\n"
        "import torch.distributed as dist\n"
        "from amp_runtime._distributed import failing\n"
        "dist.destroy_process_group = lambda: time.sleep(10**6)\n"
        "if amp.rank() == 1:\n"
        f"    if {threads}:\n"
        "        failing._PATIENCE = 0.5\n"
        "        threading.Thread(target=time.sleep, args=(10**6,)).start()\n"
        "    raise RuntimeError('one rank fails')\n"
        "time.sleep(10**6)\n"
    )
    finished = launcher.together(script, tmp_path)
    assert finished.returncode == 1 and "ended after" not in finished.stderr
    assert "RuntimeError: one rank fails" in finished.stderr
    assert ("handler of the script" in finished.stderr) == (not threads)
