"""Libraries that are installed here, of which nobody thought: the linter gets through all of their files."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from amp_migrate.commands.lint import main
from click.testing import CliRunner

pytestmark = pytest.mark.slow

LIBRARIES = ["torch.nn", "torch.optim", "torch.distributed", "torch.utils", "torch.ao", "torch._inductor", "numpy"]
LIBRARIES += ["matplotlib", "hypothesis", "libcst", "sphinx", "networkx", "sympy"]


def folder_of(name: str) -> Path:
    *parents, last = name.split(".")
    found = importlib.util.find_spec(parents[0] if parents else last)
    if found is None or found.origin is None:
        pytest.skip(f"{name} is not installed")
    return Path(found.origin).parent.joinpath(*parents[1:], *([last] if parents else []))


@pytest.mark.parametrize("options", [("--opt-level", "O1"), ("--opt-level", "O3", "--ddp")], ids=["O1", "O3"])
@pytest.mark.parametrize("name", LIBRARIES)
def test_every_file_is_judged(name: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(name)
    monkeypatch.chdir(folder)
    # Within an environment, which the search for files would pass over.
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))
    command = [*files, "--no-cache", "--jobs", "1", "--timeout", "0", "--quiet", "--format", "json", *options]
    done = CliRunner().invoke(main, command)
    # Some libraries hold files that are no Python, to test their own reader.
    assert done.exit_code in (0, 1, 2), done.output
    assert "crashed" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    findings = json.loads(done.stdout)["findings"]
    assert len(files) > 10
    for finding in findings:
        assert finding["file"] in files and finding["message"]
