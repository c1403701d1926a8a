"""What the tests of the Apex drop-in share."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from amp_runtime.apex import amp
from amp_runtime.apex.amp import _amp_state, _functions, _patching, frontend
from torch import nn


def reset() -> None:
    """Undoes ``amp.initialize``, as a new process would."""
    _patching.restore_all()
    _functions._registered.clear()
    frontend._optimizers.clear()
    vars(_amp_state).clear()
    _amp_state.__init__()  # type: ignore[misc]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.plain_norm = nn.BatchNorm1d(16, affine=False)
        self.last = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.plain_norm(F.relu(self.norm(self.first(x)))))


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def batches(steps: int, rows: int = 8, seed: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(rows, 6, generator=generator), torch.randint(0, 3, (rows,), generator=generator))
        for _ in range(steps)
    ]


def prepare(level: str, optimizer: Any = None, model: Any = None, **options: Any) -> tuple[Any, Any]:
    model = net() if model is None else model
    made = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if optimizer is None else optimizer(model)
    return amp.initialize(model, made, opt_level=level, verbosity=options.pop("verbosity", 0), **options)


def train(model: Any, optimizer: Any, data: Any) -> list[float]:
    """One plain step a batch, in Apex's manner."""
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def reference(data: Any, optimizer: Any = None) -> tuple[list[float], Net]:
    """The same in plain float32."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if optimizer is None else optimizer(model)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model
