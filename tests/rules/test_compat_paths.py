"""Apex's interface from the runtime: only what the runtime has, by the path as it is written."""

from __future__ import annotations

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

SCRIPT = """
import torch
from apex import amp

model = torch.nn.Linear(2, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer)


@{path}
def double(x):
    return x * 2


loss = double(model(torch.ones(1, 2).cuda())).sum()
with amp.scale_loss(loss, optimizer) as scaled:
    scaled.backward()
optimizer.step()
"""


@pytest.mark.parametrize(
    ("path", "outcome"), [("amp.half_function", "migrated"), ("amp.amp.half_function", "declined")]
)
def test_a_path_through_a_module_that_is_not_there_is_declined(path, outcome, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SCRIPT.format(path=path))
    report = migrate(file, Options(apex="compat"))
    assert report.precision == outcome
    assert outcome == "migrated" or "`apex.amp.amp.half_function`" in report.refusals[0].message


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("print(amp._amp_state.loss_scalers[0]._overflow_buf)", "declined"),
        ("scaler = amp._amp_state.loss_scalers[0]\nscaler._loss_scale = 4.0\nprint(scaler._overflow_buf)", "declined"),
        ("print(amp._amp_state.loss_scalers[0]._has_overflow)", "migrated"),
        ("def report():\n    print(amp._amp_state.loss_scalers[0]._overflow_buf)", "migrated"),
        ("def report():\n    print(amp._amp_state.loss_scalers[0]._overflow_buf)\n\n\nreport()", "declined"),
        ("optimizer._overflow_buf = 1\nprint(optimizer._overflow_buf)", "migrated"),
        ("print(amp._amp_state.loss_scalers[0]._unskipped)", "migrated"),
    ],
)
def test_state_that_the_loss_scaler_of_the_runtime_has_not_is_declined_at_its_line(line, outcome, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SCRIPT.format(path="amp.half_function") + line + "\n")
    report = migrate(file, Options(apex="compat"))
    assert report.precision == outcome
    if outcome == "declined":
        assert "the loss scaler of the runtime has no" in report.refusals[0].message
        written = (SCRIPT + line).splitlines()
        assert "_overflow_buf" in written[report.refusals[0].span.start.line - 1]
