"""What both commands know by name: every name means the same to both."""

from __future__ import annotations

import pytest
from amp_rules import migrate
from amp_rules.checks import all_checks
from amp_rules.lint import Linter, Mode
from amp_rules.plan.options import Options
from amp_rules.source.files import Files
from amp_rules.source.text import source_from_bytes
from amp_rules.torch.frameworks import OWN_FRAMEWORK, looks_after_processes
from amp_rules.torch.mixed_precision import SCALERS

CLIPPED = """
import torch
import {module}


def train(model, loader, optimizer, criterion):
    gs = {scaler}()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        gs.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        gs.step(optimizer)
        gs.update()
"""

TRAINED = """
import torch
from {module} import {name}

runner = {name}()
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.randn(4, 2, 8):
    optimizer.zero_grad()
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
"""


def codes(text, path):
    linter = Linter(Mode("O1", "fp16", "cuda"), all_checks())
    return {finding.code for finding in linter.lint(source_from_bytes(text.encode(), path)).findings}


@pytest.mark.parametrize("scaler", sorted(SCALERS - {"amp_runtime.scaler"}))
def test_a_scaler_is_one_under_each_of_its_names(scaler, tmp_path):
    text = CLIPPED.format(module=scaler.rpartition(".")[0], scaler=scaler)
    assert "AMP811" in codes(text, tmp_path / "train.py")


@pytest.mark.parametrize("prefix", OWN_FRAMEWORK)
def test_a_framework_is_one_to_both_commands(prefix, tmp_path):
    module, _, name = prefix.rpartition(".")
    if not name[:1].isupper():
        module, name = prefix, "Runner"
    path = tmp_path / "train.py"
    path.write_text(TRAINED.format(module=module, name=name))
    report = migrate(path, Options(ddp=True))
    assert (report.precision, [item.code for item in report.refusals][:1]) == ("already", ["AMP197"])
    # Skorch alone trains without a word of processes.
    assert looks_after_processes(f"{module}.{name}") == (prefix != "skorch")


PRIVATE_BASE = """
import torch
from torch import nn
from torch.nn.modules.loss import _Loss
from torch.utils.data import DataLoader, TensorDataset


class Distance(_Loss):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        return (self.net(x) - y).square().mean()


distance = Distance(nn.Linear(4, 1))
optimizer = torch.optim.SGD(distance.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8):
    optimizer.zero_grad()
    loss = distance(x, y)
    loss.backward()
    optimizer.step()
"""


def test_a_loss_with_a_private_base_of_torch_may_hold_the_model(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PRIVATE_BASE)
    report = migrate(path, Options(ddp=True))
    assert (report.precision, report.distribution) == ("migrated", "migrated")
    assert "distance = amp.prepare_model(Distance(nn.Linear(4, 1)))" in report.changes[0].after


def test_a_script_beside_a_file_with_the_name_of_a_library_is_found(tmp_path):
    from amp_rules.folder.training_scripts import find_entries

    (tmp_path / "string.py").write_text("def run(loss, optimizer):\n    loss.backward()\n    optimizer.step()\n")
    script = "import torch\nfrom string import run\n\nmodel = torch.nn.Linear(2, 1)\n"
    script += "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nrun(model(torch.ones(1, 2)).sum(), optimizer)\n"
    (tmp_path / "train.py").write_text(script)
    assert [path.name for path in find_entries(sorted(tmp_path.glob("*.py")), Files()).scripts] == ["train.py"]


def test_a_loader_is_prepared_in_its_own_file_where_that_changes_for_another_reason(tmp_path):
    (tmp_path / "engine.py").write_text(
        "import torch\nfrom torch.cuda.amp import GradScaler, autocast\nfrom torch.utils.data import DataLoader\n\n\n"
        "def make_loader(data):\n    return DataLoader(data, batch_size=8, shuffle=True)\n\n\n"
        "def fit(model, optimizer, loader):\n    scaler = GradScaler()\n    for x, y in loader:\n"
        "        optimizer.zero_grad()\n        with autocast():\n"
        "            loss = torch.nn.functional.mse_loss(model(x), y)\n        scaler.scale(loss).backward()\n"
        "        scaler.step(optimizer)\n        scaler.update()\n"
    )
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nfrom engine import fit, make_loader\nfrom torch.utils.data import TensorDataset\n\n"
        "model = torch.nn.Linear(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "loader = make_loader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)))\nfit(model, optimizer, loader)\n"
    )
    report = migrate(path, Options(ddp=True))
    assert [edit.path.name for edit in report.edits if edit.code == "AMP202"] == ["engine.py"]
