"""Two processes where NumPy is not installed: torch does without it, and its own collectives for objects do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import torchrun

pytestmark = pytest.mark.heavy

SCRIPT = """\
import os

import torch
from torch.utils.data import DataLoader, TensorDataset

import amp_runtime as amp

try:
    torch.ones(1).numpy()
except RuntimeError as error:
    assert "Numpy" in str(error)
else:
    raise AssertionError("NumPy is here")

amp.init("O0", ddp=True)
data = TensorDataset(torch.rand(11, 4), torch.rand(11, 1))
loader = amp.prepare_loader(DataLoader(data, batch_size=2, shuffle=True))
model = amp.prepare_model(torch.nn.Linear(4, 1))
optimizer = amp.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    amp.scaler.scale(torch.nn.functional.mse_loss(model(x), y)).backward()
    amp.scaler.step(optimizer)
    amp.scaler.update()
assert amp.from_main_process(amp.rank()) == 0
assert amp.reduce_sum(amp.rank()) == 1
amp.save_checkpoint(f"{os.environ['CHECK_DIR']}/whole.pt", model=model, optimizers=optimizer)
amp.load_checkpoint(f"{os.environ['CHECK_DIR']}/whole.pt", model=model, optimizers=optimizer)
if amp.is_main_process():
    print("trained by", amp.world_size())
"""


def test_two_processes_train_and_save(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "sitecustomize.py").write_text('import sys\n\nsys.modules["numpy"] = None\n')
    done = torchrun(script, tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "trained by 2" in done.stdout
