"""Scripts that are run under the recorder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from amp_migrate.verify.processes import Outcome
from amp_migrate.verify.reading import complaints, read_ranks
from amp_migrate.verify.traces import RankTrace

RUNTIME = Path(__file__).parents[2] / "runtime"
HEAD = """
import random, sys, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
data = TensorDataset(torch.randn(32, 6), torch.randn(32, 1))
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
"""
LOOP = """
for x, y in DataLoader(data, batch_size=4, shuffle=True):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    print(loss.item().hex(), sum(p.grad.double().square().sum() for p in model.parameters()).sqrt().item())
    optimizer.step()
print("after")
"""


class Recorded:
    """What came of a recorded script."""

    def __init__(self, folder: Path, outcome: Outcome) -> None:
        self.outcome = outcome
        self.record = folder / "record"
        self.stdout = (folder / "stdout0").read_text()
        self.ranks = read_ranks(self.record)

    @property
    def rank(self) -> RankTrace:
        assert self.outcome.statuses == (0,)
        assert complaints(self.record) == []
        (rank,) = self.ranks
        return rank


Record = Callable[..., Recorded]
