"""Why gradients are averaged at the step: what AMP289 says."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(80, 4), torch.randn(80, 1)), batch_size=8, shuffle=True)


def find_rate(x, y):
    optimizer.zero_grad()
    first = nn.functional.mse_loss(net.forward(x), y)
    first.backward()
    optimizer.step()


"""
ONE_STEP = """\
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x), y).backward()
    nn.functional.l1_loss(net(x), y).backward()
    optimizer.step()
"""
TWO_PLACES = """\
for x, y in loader:
    find_rate(x, y)
for x, y in loader:
    loss = nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loops", "why"), [(ONE_STEP, "a step has several backward passes"), (TWO_PLACES, "is trained in several places")]
)
def test_several_passes_are_of_one_step_or_of_several_places(tmp_path: Path, loops: str, why: str) -> None:
    script = tmp_path / "train.py"
    script.write_text((HEAD if loops is TWO_PLACES else HEAD.partition("def find_rate")[0]) + loops)
    notes = [note.text for note in migrate(script, Options(opt_level="O1", ddp=True)).notes if note.code == "AMP289"]
    assert len(notes) == 1
    assert why in notes[0]
