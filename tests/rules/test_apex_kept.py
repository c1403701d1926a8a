"""Scripts that keep Apex's interface: what is said of several processes is true of them."""

from __future__ import annotations

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

HALF = """
import torch
from apex.optimizers import FP16_Optimizer, FusedAdam
from torch import nn
from torch.utils.data import DataLoader
loader = DataLoader(torch.randn(64, 4), batch_size=8)
model = nn.Linear(4, 1).cuda().half()
{wrapped}
optimizer = FP16_Optimizer(FusedAdam(model.parameters(), max_grad_norm=1.0), dynamic_loss_scale=True)
for x in loader:
    optimizer.zero_grad()
    optimizer.backward(model(x.cuda().half()).float().mean())
    optimizer.step()
print(FP16_Optimizer)
"""


@pytest.mark.parametrize(("way", "advice"), [("compat", "without `--apex compat`"), ("auto", "that AMP480 names")])
@pytest.mark.parametrize("wrapped", ["", "model = nn.DataParallel(model)"])
def test_the_advice_is_no_wrapper(tmp_path, way, advice, wrapped):
    entry = tmp_path / "train.py"
    entry.write_text(HALF.format(wrapped=wrapped))
    report = migrate(entry, Options(apex=way, ddp=True))
    reason = next(item for item in report.refusals if item.unit == "distribution")
    assert ("DataParallel` spreads" in reason.message) is bool(wrapped)
    assert advice in reason.recipe and "Distributed" not in reason.recipe


LOST = """
import torch
from apex import {names}
from torch import nn

model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer)
loss = model(torch.ones(2, 4).cuda()).mean()
with amp.scale_loss(loss, optimizer) as scaled_loss:
    scaled_loss.backward()
{more}
optimizer.step()
"""


@pytest.mark.parametrize(
    ("names", "more", "lines"),
    [
        ("amp", "print(amp.lists.functional_overrides)", [12]),
        ("amp, pyprof", "pyprof.nvtx.init()", [12, 3]),
    ],
)
def test_where_neither_way_goes_the_other_is_not_advised_and_a_place_is_told_once(tmp_path, names, more, lines):
    entry = tmp_path / "train.py"
    entry.write_text(LOST.format(names=names, more=more))
    report = migrate(entry, Options())
    assert report.precision == "declined"
    assert [item.span.start.line for item in report.refusals] == lines
    assert not any("compat" in item.recipe for item in report.refusals)
    alone = migrate(entry, Options(apex="idiom"))
    assert "--apex compat" in alone.refusals[0].recipe
