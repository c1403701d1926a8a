"""Scripts that keep Apex's interface: what is said of several processes names what stands in them."""

from __future__ import annotations

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

HALF = """
import torch
from apex.optimizers import FP16_Optimizer, FusedAdam
from torch import nn
{imports}

def batches(data):
    for start in range(0, len(data), 8):
        yield data[start : start + 8]

data = torch.randn(64, 4)
{loader}
model = nn.Linear(4, 1).cuda().half()
{wrapped}
optimizer = FP16_Optimizer(FusedAdam(model.parameters(), max_grad_norm=1.0), dynamic_loss_scale=True)
for x in loader:
    optimizer.zero_grad()
    optimizer.backward(model(x.cuda().half()).float().mean())
    optimizer.step()
"""
BATCHES = {"imports": "", "loader": "loader = batches(data)"}
LOADER = {
    "imports": "from torch.utils.data import DataLoader",
    "loader": "loader = DataLoader(data, batch_size=8)",
}


@pytest.mark.parametrize("data", [BATCHES, LOADER])
@pytest.mark.parametrize("wrapped", ["", "model = nn.DataParallel(model)"])
def test_the_advice_names_what_the_script_has(tmp_path, data, wrapped):
    entry = tmp_path / "train.py"
    entry.write_text(HALF.format(wrapped=wrapped, **data))
    report = migrate(entry, Options(apex="compat", ddp=True))
    reason = next(item for item in report.refusals if item.unit == "distribution")
    assert "amp.initialize" not in reason.recipe
    assert ("DataParallel` spreads" in reason.message) is bool(wrapped)
    assert ("in place of `DataParallel`" in reason.recipe) is bool(wrapped)
    assert ("DistributedSampler" in reason.recipe) is (data is LOADER)
