"""Half of a program never leaves Apex: the file that scales the loss has to be among those that are changed."""

from __future__ import annotations

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

SCRIPT = """
import torch
from apex import amp
from torch import nn
from pipeline.fitter import Fitter

model = nn.Linear(4, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
Fitter(model, optimizer).fit()
"""
FITTER = """
from apex import amp


class Fitter:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def fit(self):
        loss = self.model(torch.randn(8, 4).cuda()).sum()
        with amp.scale_loss(loss, self.optimizer) as scaled:
            scaled.backward()
        self.optimizer.step()
"""


@pytest.mark.parametrize("apex", ["auto", "compat"])
def test_nothing_changes_where_that_file_was_not_found(tmp_path, apex):
    entry = tmp_path / "train.py"
    entry.write_text(SCRIPT)
    report = migrate(entry, Options(apex=apex))
    assert report.precision == "declined" and not report.changes
    assert any("pipeline.fitter" in refusal.message for refusal in report.refusals if refusal.code == "AMP490")


def test_both_change_where_it_was(tmp_path):
    entry = tmp_path / "train.py"
    entry.write_text(SCRIPT)
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "fitter.py").write_text(FITTER)
    report = migrate(entry, Options(apex="compat"))
    assert {change.path.name for change in report.changes} == {"train.py", "fitter.py"}


def test_a_model_that_is_only_evaluated_needs_no_such_file(tmp_path):
    entry = tmp_path / "train.py"
    entry.write_text(
        SCRIPT.replace("model, optimizer = amp.initialize(model, optimizer,", "model = amp.initialize(model,")
    )
    assert migrate(entry, Options(apex="compat")).precision == "migrated"


LIBRARY = """
import torch
from apex import amp
from timm.utils import ApexScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
loss_scaler = ApexScaler()
for x, y in DataLoader(TensorDataset(torch.randn(80, 4), torch.randn(80, 1)), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())
    loss_scaler(loss, optimizer)
"""


@pytest.mark.parametrize("apex", ["auto", "compat"])
def test_nothing_changes_where_a_library_scales_with_an_apex_of_its_own(tmp_path, apex):
    entry = tmp_path / "train.py"
    entry.write_text(LIBRARY)
    report = migrate(entry, Options(apex=apex))
    assert report.precision == "declined" and not report.changes
    assert any("`ApexScaler()` scales losses" in refusal.message for refusal in report.refusals)
