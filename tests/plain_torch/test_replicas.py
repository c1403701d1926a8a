"""Models that DataParallel goes on to spread over several GPUs, in torch's words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from amp_rules.plan.options import Options

sys.path.insert(0, str(Path(__file__).parents[1] / "rules"))

from migrating import migrated_text

SCRIPT = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.DataParallel(nn.Linear(4, 1){devices})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("dtype", "devices", "precision"),
    [
        ("bf16", "", "declined"),
        ("bf16", ", device_ids=[0, 1]", "declined"),
        ("bf16", ", device_ids=[0]", "migrated"),
        ("fp16", "", "migrated"),
        ("auto", "", "migrated"),
    ],
)
def test_threads_would_not_compute_in_bfloat16(tmp_path: Path, dtype: str, devices: str, precision: str) -> None:
    text = SCRIPT.replace("{devices}", devices)
    report, _ = migrated_text(tmp_path, text, Options(target="torch", dtype=dtype))
    assert report.precision == precision
    reasons = [(item.code, item.span.start.line) for item in report.refusals if item.span is not None]
    assert reasons == ([("AMP392", 5)] if precision == "declined" else [])
