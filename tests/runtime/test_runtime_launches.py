"""One script, started in several ways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launching import Finished, Launcher

TRAIN = """
import json, os
import amp_runtime as amp
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

level = os.environ["LEVEL"]
amp.init(opt_level=level, ddp=True, dtype="bf16")
torch.manual_seed(3)
data = TensorDataset(torch.randn(24, 6), torch.randint(0, 3, (24,)))
loader = amp.prepare_loader(DataLoader(data, batch_size=6, shuffle=True))
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
model = amp.prepare_model(model.to(amp.device("cpu")))
optimizer = amp.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        with amp.autocast():
            loss = F.cross_entropy(model(x), y)
        amp.scaler.scale(loss).backward()
        amp.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        amp.scaler.step(optimizer)
        amp.scaler.update()
        losses.append(loss.item())
if amp.is_main_process():
    print(json.dumps(losses))
"""


def losses_in(finished: Finished) -> list[float]:
    assert finished.returncode == 0, finished.stderr[-3000:]
    values: list[float] = json.loads(finished.stdout.strip().splitlines()[-1])
    return values


@pytest.mark.heavy
@pytest.mark.parametrize("level", ["O0", "O2"])
def test_alone_and_as_the_only_rank_of_torchrun_the_losses_are_identical(
    level: str, launcher: Launcher, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    expected = losses_in(launcher.alone(script, tmp_path, LEVEL=level))
    assert len(set(expected)) == 8
    assert losses_in(launcher.together(script, tmp_path, 1, LEVEL=level)) == expected
