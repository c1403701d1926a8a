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


def contents(file: Path) -> tuple[list[str], int]:
    """The names of a file's checks and the number of ranks that it wants."""
    checks, ranks = [], 2
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_"):
            checks.append(node.name)
        elif isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["RANKS"]:
            ranks = ast.literal_eval(node.value)
    return checks, ranks


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_checks_pass_on_every_rank(file: Path, launcher: Launcher, tmp_path: Path) -> None:
    checks, ranks = contents(file)
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
