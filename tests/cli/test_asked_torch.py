"""A project that asks for an older torch than the new code needs is told so, at its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_migrate.out.asked_torch import asked_older

OLDER = [
    ("requirements.txt", "numpy\ntorch==1.7.1\n", 2, "torch==1.7.1"),
    ("requirements_gpu.txt", "torch==1.7.1+cu110  # for the cluster", 1, "torch==1.7.1+cu110"),
    ("setup.py", 'setup(install_requires=[\n    "torch>=2.1,<2.3",\n])\n', 2, "torch>=2.1,<2.3"),
    ("setup.py", "setup(install_requires=['numpy', 'torch <= 2.3.1'])\n", 1, "torch <= 2.3.1"),
    ("pyproject.toml", 'dependencies = [\n  "torch~=2.1.0",\n]\n', 2, "torch~=2.1.0"),
    ("pyproject.toml", '[tool.poetry.dependencies]\ntorch = "^1.13"\n', 2, 'torch = "^1.13'),
    ("environment.yml", "dependencies:\n  - python=3.8\n  - pytorch=1.10\n", 3, "pytorch=1.10"),
    ("requirements/train.txt", "torch<2\n", 1, "torch<2"),
]
NEWER = [
    ("requirements.txt", "torch\ntorchvision==0.8\ntorch>=1.7\npytorch-lightning==1.5\n"),
    ("requirements.txt", "torch==2.4.0\n# torch==1.7\n"),
    ("pyproject.toml", 'dependencies = ["torch~=2.1", "torch>=2.4,<3"]\n'),
    ("pyproject.toml", '[tool.poetry.dependencies]\ntorch = "^2.1"\n'),
    ("environment.yml", "dependencies:\n  - pytorch>=1.10\n  - cudatoolkit=11\n"),
    ("notes.txt", "torch==1.7\n"),
]


def project(folder: Path, name: str, text: str) -> Path:
    (folder / ".git").mkdir()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    script = folder / "tools" / "train.py"
    script.parent.mkdir()
    script.write_text("import torch\n")
    return script


@pytest.mark.parametrize(("name", "text", "line", "asked"), OLDER)
def test_a_bound_below_what_is_needed_is_found(tmp_path, name, text, line, asked):
    found = asked_older(project(tmp_path, name, text))
    assert found is not None
    assert (found.path.relative_to(tmp_path).as_posix(), found.line, found.text) == (name, line, asked)


@pytest.mark.parametrize(("name", "text"), NEWER)
def test_what_takes_a_current_torch_is_no_such_bound(tmp_path, name, text):
    assert asked_older(project(tmp_path, name, text)) is None
