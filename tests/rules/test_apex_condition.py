"""Apex's ``initialize`` under a condition that other statements share."""

from __future__ import annotations

import textwrap

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from apex import amp

fp16, level = True, "O1"


def report(what):
    print(what)


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{condition}
for x, y in DataLoader(TensorDataset(torch.randn(80, 4), torch.randn(80, 1)), batch_size=8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    if fp16:
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
    else:
        loss.backward()
    optimizer.step()
"""
INITIALIZE = "model, optimizer = amp.initialize(model, optimizer, opt_level=level)"


@pytest.fixture
def outcome(tmp_path):
    def made(condition):
        path = tmp_path / "train.py"
        path.write_text(SCRIPT.format(condition=textwrap.dedent(condition).strip()))
        report = migrate(path, Options(ddp=True))
        after = report.changes[0].after if report.changes else ""
        return report.distribution, 'level if fp16 else "O0"' in after

    return made


@pytest.mark.parametrize(
    "condition",
    [
        f"if fp16:\n    {INITIALIZE}\n    print('half')",
        f"if fp16:\n    print('half')\n    {INITIALIZE}",
        f"if fp16:\n    {INITIALIZE}\n    print('half')\nelse:\n    print('full')",
        f"if fp16:\n    {INITIALIZE}\n    report('half')",
        f"if fp16:\n    {INITIALIZE}\n    print(model)\nelse:\n    model = nn.DataParallel(model)",
    ],
)
def test_models_are_prepared_before_a_condition_that_says_something_too(outcome, condition):
    assert outcome(condition) == ("migrated", True)


@pytest.mark.parametrize(
    "condition",
    [
        f"if fp16:\n    level = 'O2'\n    {INITIALIZE}",
        f"if fp16:\n    {INITIALIZE}\n    print(model)",
        f"if fp16:\n    {INITIALIZE}\n    print('half')\nelse:\n    model = nn.Sequential(model)",
        f"if fp16:\n    {INITIALIZE}\n    print(model)\nelse:\n    model = nn.Linear(4, 1)",
    ],
)
def test_what_touches_the_models_or_the_level_keeps_its_place(outcome, condition):
    assert outcome(condition)[1] is False
