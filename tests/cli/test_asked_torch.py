"""A project that asks for an older torch than the new code needs is told so, at its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_migrate.commands.migrate import main
from amp_migrate.out.asked_torch import asked_older, needed_by_names, takes_older
from amp_rules.plan.report import FileChange
from click.testing import CliRunner

OWN = """import torch

model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler()
for _ in range(9):
    optimizer.zero_grad()
    with torch.cuda.amp.autocast():
        loss = model(torch.randn(4, 4).cuda()).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
OLDER = [
    ("requirements.txt", "numpy\ntorch==1.7.1\n", 2, "torch==1.7.1"),
    ("requirements_gpu.txt", "torch==1.7.1+cu110  # for the cluster", 1, "torch==1.7.1+cu110"),
    ("setup.py", 'setup(install_requires=[\n    "torch>=2.1,<2.3",\n])\n', 2, "torch>=2.1,<2.3"),
    ("setup.py", "setup(install_requires=['numpy', 'torch <= 2.3.1'])\n", 1, "torch <= 2.3.1"),
    ("pyproject.toml", 'dependencies = [\n  "torch~=2.1.0",\n]\n', 2, "torch~=2.1.0"),
    ("pyproject.toml", '[tool.poetry.dependencies]\ntorch = "^1.13"\n', 2, 'torch = "^1.13'),
    ("environment.yml", "dependencies:\n  - python=3.8\n  - pytorch=1.10\n", 3, "pytorch=1.10"),
    ("requirements/train.txt", "torch<2\n", 1, "torch<2"),
    (
        "requirements.txt",
        "numpy\ntorch @ https://host/a/torch-2.1.0%2Bcu118-cp311-cp311-linux_x86_64.whl#sha256=bcb1\n",
        2,
        "torch-2.1.0%2Bcu118-cp311-cp311-linux_x86_64.whl",
    ),
    ("requirements.txt", "https://host/torch-1.13.1+cpu-none-any.whl\n", 1, "torch-1.13.1+cpu-none-any.whl"),
]
NEWER = [
    ("requirements.txt", "torch\ntorchvision==0.8\ntorch>=1.7\npytorch-lightning==1.5\n"),
    ("requirements.txt", "torch==2.4.0\n# torch==1.7\n"),
    ("pyproject.toml", 'dependencies = ["torch~=2.1", "torch>=2.4,<3"]\n'),
    ("pyproject.toml", '[tool.poetry.dependencies]\ntorch = "^2.1"\n'),
    ("environment.yml", "dependencies:\n  - pytorch>=1.10\n  - cudatoolkit=11\n"),
    ("notes.txt", "torch==1.7\n"),
    ("requirements.txt", "torch @ https://host/torch-2.5.1-cp311-cp311-linux_x86_64.whl\n"),
    ("requirements.txt", "torchaudio @ https://host/torchaudio-2.1.0-cp311-cp311-linux_x86_64.whl\ntorch\n"),
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


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("from torch.amp import autocast, GradScaler", (2, 3)),
        ('with torch.amp.autocast("cuda"):', (1, 12)),
        ('    @torch.amp.custom_fwd(device_type="cuda")', (2, 4)),
    ],
)
def test_the_present_names_need_the_torch_that_has_them(tmp_path, line, version):
    before = "with torch.cuda.amp.autocast():\n    scaler = GradScaler\n"
    assert needed_by_names([FileChange(tmp_path, before, f"{before}{line}\n")]) == version


def test_a_bound_holds_for_the_version_that_is_asked_for(tmp_path):
    script = project(tmp_path, "requirements.txt", "torch==2.3.1\n")
    assert asked_older(script) is not None
    assert asked_older(script, (2, 3)) is None


@pytest.mark.parametrize(("text", "found"), [("torch>=1.7.0", True), ("torch>=2.3", False), ("torch==2.3.0", False)])
def test_a_lower_bound_may_take_an_older_one(tmp_path, text, found):
    assert (takes_older(project(tmp_path, "requirements.txt", f"numpy\n{text}\n"), (2, 3)) is not None) is found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("torch==1.8.0", "`torch==1.8.0`, and the new code needs torch 2.3 or later"),
        ("torch>=1.7.0", "`torch>=1.7.0` takes an older one, too, and the new code needs torch 2.3"),
        ("torch==2.3.0", None),
    ],
)
def test_present_names_alone_are_told_too(tmp_path, monkeypatch, text, told):
    script = project(tmp_path, "requirements.txt", f"{text}\n")
    script.write_text(OWN)
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(main, ["tools/train.py", "--no-cache"]).stderr
    assert ("AMP411" in said, "the new code needs torch" in said) == (True, told is not None)
    assert told is None or f"requirements.txt:1: {told}" in said
