"""The page about the runtime: its code runs, and it knows every public name."""

from __future__ import annotations

import re
from pathlib import Path

import amp_runtime as amp
import pytest
from launching import Launcher

PAGE = Path(__file__).parents[2] / "docs" / "runtime.md"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def script() -> str:
    """The page with everything blank but its Python, so that errors have its line numbers."""
    inside, lines = False, []
    for line in PAGE.read_text().splitlines():
        fence = line.startswith("```")
        lines.append("" if fence or not inside else line)
        inside = line == "```python" if fence else inside
    return "\n".join(lines) + "\n"


def test_the_blocks_make_a_script() -> None:
    assert len(blocks()) >= 8
    assert [line for line in script().splitlines() if line] == [
        line for block in blocks() for line in block.splitlines() if line
    ]


@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_blocks_run_in_order(ranks: int, launcher: Launcher, tmp_path: Path) -> None:
    file = tmp_path / "runtime_md.py"
    file.write_text(script())
    finished = launcher.alone(file, tmp_path) if ranks == 1 else launcher.together(file, tmp_path, ranks)
    assert finished.returncode == 0, f"line numbers are those of {PAGE}\n{finished.stderr[-3000:]}"
    assert finished.stdout.count("Perf Summary") == 1


def test_every_public_name_is_on_the_page() -> None:
    text = PAGE.read_text()
    missing = [name for name in amp.__all__ if not re.search(rf"\b{name}\b", text)]
    assert not missing


def test_every_name_on_the_page_exists() -> None:
    of_apex = {"state_dict"}
    named = set(re.findall(r"\bamp\.([A-Za-z_][A-Za-z_0-9]*)", PAGE.read_text())) - of_apex - {"GradScaler"}
    assert [name for name in sorted(named) if not hasattr(amp, name)] == []
