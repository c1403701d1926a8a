"""Losses of which averaged gradients are not those of all samples together are noted, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

SCRIPT = """import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.register_buffer("table", torch.randn(4, 8))

    def forward(self, x):
        keys = self.project(x)
        near = torch.cdist(keys, self.table)
        return keys @ keys.t() @ keys / keys.std(0) + near.sum() * 0


loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 8)), batch_size=16, shuffle=True)
model = Attention()
criterion = nn.MSELoss({made})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    out = model(x)
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def noted(folder: Path, loss: str, made: str = "", *, ddp: bool = True) -> list[str]:
    entry = folder / "train.py"
    entry.write_text(SCRIPT.format(loss=loss, made=made))
    report = migrate(entry, Options(ddp=ddp))
    assert report.precision == "migrated"
    return [note.text for note in report.notes if note.code == "AMP283"]


@pytest.mark.parametrize(
    "loss",
    [
        "F.cross_entropy(out @ y.t(), torch.arange(len(x)))",
        "F.cross_entropy(torch.mm(out, y.transpose(0, 1)), torch.arange(len(x)))",
        "torch.cdist(out, y).mean()",
        'F.cross_entropy(torch.einsum("nc,mc->nm", out, y), torch.arange(len(x)))',
        "F.cosine_similarity(out.unsqueeze(1), y.unsqueeze(0), dim=-1).mean()",
        "(out.unsqueeze(1) - y.unsqueeze(0)).pow(2).mean()",
        "(out[:, None] - y[None]).pow(2).mean()",
        "F.relu(1 - out.var(dim=0)).mean()",
    ],
)
def test_losses_that_compare_samples_are_noted(tmp_path: Path, loss: str) -> None:
    (text,) = noted(tmp_path, loss)
    assert text.endswith("compares the samples of a batch: each process compares only those of its own batch")
    assert not noted(tmp_path, loss, ddp=False)


@pytest.mark.parametrize(
    ("loss", "made"),
    [
        ("F.mse_loss(out, y, reduction='sum')", ""),
        ("criterion(out, y)", "reduction='sum'"),
        ("F.mse_loss(out, y, reduction='sum') / x.size(1)", ""),
    ],
)
def test_sums_over_the_batch_are_noted(tmp_path: Path, loss: str, made: str) -> None:
    (text,) = noted(tmp_path, loss, made)
    assert "is a sum over the batch" in text


def test_a_sum_that_a_setting_may_choose_is_no_certain_one(tmp_path: Path) -> None:
    script = SCRIPT.replace("nn.MSELoss({made})", "nn.L1Loss() if smooth else nn.MSELoss(reduction='sum')")
    entry = tmp_path / "train.py"
    entry.write_text(script.format(loss="criterion(out, y)").replace("model = Att", "smooth = True\nmodel = Att"))
    (text,) = [note.text for note in migrate(entry, Options(ddp=True)).notes if note.code == "AMP283"]
    assert "may be a sum over the batch" in text


@pytest.mark.parametrize(
    "loss",
    [
        "criterion(out, y)",
        "F.mse_loss(out, y)",
        "(out - y).pow(2).sum(1).mean()",
        'torch.einsum("nc,nc->n", out, y).mean()',
        'torch.einsum("nc,nd->cd", out, y).mean()',
        "F.cosine_similarity(out, y, dim=-1).mean()",
        "F.mse_loss(out, y, reduction='sum') / len(x)",
        "F.mse_loss(out, y, reduction='sum').div(x.size(0))",
        "F.mse_loss(out, y, reduction='sum').div(x.shape[0])",
    ],
)
def test_means_over_samples_and_matrices_of_a_network_are_not(tmp_path: Path, loss: str) -> None:
    assert noted(tmp_path, loss) == []


OF_A_NETWORK = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def nearest(points, number):
    distances = torch.cdist(points, points)
    return distances.topk(number, largest=False).indices


class Points(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(3, 2)

    def forward(self, x):
        index = nearest(x, 4)
        return self.project(x[torch.arange(len(x))[:, None], index[:, 0]]).mean(1)


loader = DataLoader(TensorDataset(torch.randn(64, 16, 3), torch.randint(2, (64,))), batch_size=16, shuffle=True)
model = Points()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_functions_that_a_network_alone_calls_are_not(tmp_path: Path) -> None:
    entry = tmp_path / "train.py"
    entry.write_text(OF_A_NETWORK)
    assert [note.text for note in migrate(entry, Options(ddp=True)).notes if note.code == "AMP283"] == []


@pytest.mark.parametrize("case", ["AMP105/attack_by_an_optimizer", "AMP107/attack_in_two_ways"])
def test_sums_of_which_an_input_alone_gets_a_gradient_are_not(case: str) -> None:
    entry = Path(__file__).parents[2] / "fixtures" / case / "before.py"
    assert [note.text for note in migrate(entry, Options(ddp=True)).notes if note.code == "AMP283"] == []
