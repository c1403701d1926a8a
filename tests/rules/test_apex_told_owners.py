"""An optimizer that cannot be followed, and what the branches with Apex and without say of its parameters."""

from __future__ import annotations

import pytest
from amp_rules.plan.options import Options
from migrating import migrated_text

SCRIPT = """
import sys

import torch
from apex import amp
from elsewhere import groups_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

half = "--half" in sys.argv
model = nn.Linear(4, 2).cuda()
other = nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(groups_of(model), lr=0.1)
if half:
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
for x, y in DataLoader(TensorDataset(torch.randn(48, 4), torch.randint(0, 2, (48,))), batch_size=8):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    if half:
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        nn.utils.clip_grad_norm_({masters}, 1.0)
    else:
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""


def test_the_optimizer_whose_masters_stand_in_the_other_branch_is_unscaled(tmp_path):
    text = SCRIPT.format(masters="amp.master_params(optimizer)")
    report, after = migrated_text(tmp_path, text, Options(apex="idiom"))
    assert report.precision == "migrated", report.refusals
    assert (
        "    amp.scaler.scale(loss).backward()\n"
        "    amp.scaler.unscale_(optimizer)\n"
        "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    ) in after


@pytest.mark.parametrize("masters", ["groups_of(model)", "other.parameters()"])
def test_without_that_it_is_declined(masters, tmp_path):
    report, _ = migrated_text(tmp_path, SCRIPT.format(masters=masters), Options(apex="idiom"))
    assert report.precision == "declined"
    assert any(item.code == "AMP195" for item in report.refusals)
