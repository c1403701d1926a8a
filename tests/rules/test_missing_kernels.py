"""Operations that raise in half precision run in FP32 where the training step runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

LAYERS = """import torch
from torch import nn


class Whitening(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x):
        y = self.proj(x)
        {body}
        return y
"""
TRAIN = """import torch
from layers import Whitening

model = Whitening()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
for step in range(3):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def edited(folder: Path, body: str, options: Options | None = None, before: str = "") -> list[str]:
    """The lines of the layers that the migration writes."""
    (folder / "layers.py").write_text(LAYERS.format(body=body))
    entry = folder / "train.py"
    entry.write_text(TRAIN.format(before=before))
    report = migrate(entry, options or Options())
    assert report.precision == "migrated" and not report.notes
    changed = [change for change in report.changes if change.path.name == "layers.py"]
    return [line.strip() for change in changed for line in change.after.splitlines() if "float_function" in line]


def test_what_raises_at_one_level_or_another_runs_in_fp32(tmp_path: Path) -> None:
    assert edited(tmp_path, "y = y * torch.linalg.inv(self.proj(y))") == [
        "y = y * amp.float_function(torch.linalg.inv)(self.proj(y))"
    ]
    assert edited(tmp_path, "y = y * torch.linalg.pinv(self.proj.weight)") == [
        "y = y * amp.float_function(torch.linalg.pinv)(self.proj.weight)"
    ]


def test_a_method_becomes_the_function_that_it_stands_for(tmp_path: Path) -> None:
    assert edited(tmp_path, "y = y * y.quantile(0.5, dim=1, keepdim=True)") == [
        "y = y * amp.float_function(torch.Tensor.quantile)(y, 0.5, dim=1, keepdim=True)"
    ]


@pytest.mark.parametrize(
    "body",
    [
        "y = y * torch.linalg.inv(self.proj(y).float())",
        "y = y * mine.linalg.inv(self.proj(y))",
        "y = y + y.sort().values",
        "y = y @ torch.linalg.inv(y.double().t() @ y.double()).to(y.dtype)",
    ],
)
def test_what_is_converted_or_not_certain_stays(body: str, tmp_path: Path) -> None:
    assert edited(tmp_path, body) == []


def test_what_does_not_run_with_the_step_stays(tmp_path: Path) -> None:
    assert edited(tmp_path, "pass", before="print(torch.linalg.inv(model.proj.weight))") == []


def test_fourier_transforms_run_in_fp32_in_fp16_too_which_takes_some_sizes_alone(tmp_path: Path) -> None:
    body = "y = y + torch.fft.fft(y).real"
    for dtype in ("fp16", "bf16", "auto"):
        assert edited(tmp_path, body, Options(dtype=dtype)) == ["y = y + amp.float_function(torch.fft.fft)(y).real"]


def test_a_script_for_apex_is_treated_alike(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text(LAYERS.format(body="y = y * torch.linalg.inv(self.proj(y))"))
    text = TRAIN.replace("import torch\n", "import torch\nfrom apex import amp\n", 1)
    text = text.format(before="model, optimizer = amp.initialize(model, optimizer, opt_level='O1')")
    scaled = "with amp.scale_loss(loss, optimizer) as scaled:\n        scaled.backward()"
    text = text.replace("loss.backward()", scaled)
    entry = tmp_path / "train.py"
    entry.write_text(text)
    report = migrate(entry, Options())
    assert report.precision == "migrated"
    after = "".join(change.after for change in report.changes)
    assert "amp.float_function(torch.linalg.inv)(self.proj(y))" in after
