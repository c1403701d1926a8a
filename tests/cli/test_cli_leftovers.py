"""Files that no training script leads to."""

from __future__ import annotations

import pytest

TRAIN = """
import torch
from torch import nn, optim

model = nn.Linear(4, 2)
optimizer = optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    loss = model(torch.randn(8, 4)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
INFER = """
import torch
from torch.autograd import Variable

model = torch.load("model.pt")
with torch.no_grad():
    print(model(Variable(torch.randn(1, 4))))
"""
APEX = "from apex.normalization import FusedLayerNorm\n\n\ndef layer(size):\n    return FusedLayerNorm(size)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project, for the real analysis."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "infer.py").write_text(INFER)
    (tmp_path / "layers.py").write_text(APEX)
    return tmp_path


@pytest.fixture
def invoke(folder):
    from amp_migrate.commands.migrate import main
    from click.testing import CliRunner

    def call(*arguments):
        return CliRunner().invoke(main, [*arguments, "--no-cache"])

    return call


def test_apex_goes_from_them_and_old_names_stay(invoke):
    done = invoke(".", "--ddp")
    assert "-from apex.normalization" in done.stdout
    assert "Variable" not in done.stdout
    assert "layers.py: no training script imports it; its old interfaces are replaced" in done.stderr
    assert "1 training script in 3 files" in done.stderr


def test_with_modernize_their_old_names_go_too(invoke):
    done = invoke(".", "--modernize")
    assert "-    print(model(Variable(torch.randn(1, 4))))" in done.stdout
    assert "infer.py: no training script imports it; its old interfaces are replaced" in done.stderr


def test_they_are_left_out_where_scripts_are_chosen(invoke):
    done = invoke(".", "--modernize", "--entry", "train.py")
    assert "infer.py" not in done.stdout + done.stderr and "layers.py" not in done.stdout + done.stderr


def test_a_second_run_changes_nothing(invoke, folder):
    assert invoke(".", "--ddp", "--modernize", "-w", "--allow-dirty").exit_code == 0
    done = invoke(".", "--ddp", "--modernize", "--check")
    assert (done.exit_code, done.stdout) == (0, "")
