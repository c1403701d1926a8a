"""Scripts whose half precision by hand stays: several processes train them all the same."""

from __future__ import annotations

from amp_rules import migrate
from amp_rules.plan.options import Options

SCRIPT = """\
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad.sign()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return Sign.apply(self.layer(x))


model = Net()
criterion = nn.MSELoss()
half = "--half" in sys.argv
if half:
    criterion = criterion.half()
    model = model.half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.randn(80, 4), torch.randn(80, 1)), batch_size=8, shuffle=True):
    if half:
        x, y = x.half(), y.half()
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
"""


def decided(tmp_path, *, ddp: bool):
    """The report for the script."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return migrate(path, Options(ddp=ddp))


def test_it_is_distributed_and_its_precision_stays(tmp_path):
    report = decided(tmp_path, ddp=True)
    assert (report.precision, report.distribution) == ("already", "migrated")
    (change,) = report.changes
    assert "amp.prepare_loader(" in change.after and "amp.prepare_model(" in change.after
    assert "amp.scaler" not in change.after and 'amp.init(opt_level="O0", ddp=True)' in change.after
    assert {item.unit for item in report.refusals} == {"precision"}


def test_nothing_is_changed_where_no_processes_are_asked_for(tmp_path):
    report = decided(tmp_path, ddp=False)
    assert report.precision == "already" and not report.changes
