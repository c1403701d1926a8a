"""Libraries that are installed here, of which nobody thought: what is written of them is valid Python."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from amp_migrate.commands.migrate import main
from click.testing import CliRunner

pytestmark = pytest.mark.slow

LIBRARIES = ["torch/optim", "torch/utils/data", "torch/nn/modules", "torch/distributed/fsdp", "torch/ao/quantization"]
LIBRARIES += ["torch/testing/_internal/distributed", "numpy/lib", "hypothesis", "libcst/codemod"]


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_file_is_migrated_or_left_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, *inner = name.split("/")
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    folder = Path(found.origin).parent.joinpath(*inner)
    shutil.copytree(folder, tmp_path / "library", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    monkeypatch.chdir(tmp_path)
    command = ["library", "--ddp", "--modernize", "--no-cache", "--quiet", "--jobs", "1", "--timeout", "0"]
    done = CliRunner().invoke(main, [*command, "--format", "json"])
    assert done.exit_code in (0, 1, 2), done.output
    assert "crashed" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert json.loads(done.stdout)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.py")}
    CliRunner().invoke(main, [*command, "-w"])
    for path in before:
        if path.read_bytes() != before[path]:
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
