"""A small training run with everything that has a state, to be stopped after any step and resumed."""

from __future__ import annotations

import random
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import amp_runtime as amp
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import data


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.dropout(torch.relu(self.norm(self.first(x))), 0.3, self.training))


class Points(data.Dataset[Any]):
    """Picklable, for workers."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(size, 5, generator=generator)
        self.y = torch.randint(0, 3, (size,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


class Run:
    """Objects made as a script makes them, with random numbers of its own that a resumed run must not keep."""

    def __init__(self, seed: int, *, size: int = 14, workers: int = 0, optimizer: str = "SGD") -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        self.loader = amp.prepare_loader(data.DataLoader(Points(size), batch_size=4, shuffle=True, num_workers=workers))
        self.model = amp.prepare_model(Net())
        options = {"momentum": 0.9} if optimizer == "SGD" else {}
        self.optimizer: Any = getattr(amp.optim, optimizer)(self.model.parameters(), lr=0.05, **options)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 9)
        self.ema = amp.EMA(self.model, 0.9, warmup=True)
        amp.seed_by_rank()
        self.steps = 0
        self.losses: list[float] = []

    def parts(self) -> dict[str, Any]:
        names = ("model", "optimizer", "scheduler", "ema", "loader")
        return {name: getattr(self, name) for name in names}

    def train(self, until: int, path: Path | None = None, cuts: Container[int] = ()) -> None:
        """Goes on to a number of steps, and saves inside the loop's body after the steps in ``cuts``."""
        while self.steps < until:
            for x, y in self.loader:
                self._step(x, y)
                if path is not None and self.steps in cuts:
                    amp.save_checkpoint(named(path, self.steps), **self.parts(), steps=self.steps)
                if self.steps == until:
                    return

    def _step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        with amp.autocast():
            loss = F.cross_entropy(self.model(x + 0.01 * torch.randn_like(x)), y) * random.uniform(0.9, 1.1)
        amp.scaler.scale(loss).backward()
        amp.scaler.step(self.optimizer)
        amp.scaler.update()
        self.scheduler.step()
        self.ema.update()
        self.steps += 1
        self.losses.append(loss.item())

    def resume(self, path: Path) -> None:
        self.steps = amp.load_checkpoint(path, **self.parts())["steps"]

    def everything(self) -> list[torch.Tensor]:
        """All that the run has come to, as tensors."""
        return [
            *_tensors([self.model.state_dict(), self.optimizer.state_dict(), self.ema.state_dict()]),
            torch.tensor([self.scheduler.get_last_lr()[0], amp.scaler.get_scale(), random.random()]).double(),
            torch.get_rng_state(),
        ]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value.detach().clone()
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list):
        for item in value:
            yield from _tensors(item)


def named(path: Path, steps: int) -> Path:
    return path.with_name(f"{path.stem}-{steps}{path.suffix}")


def assert_resumes_bit_for_bit(path: Path, steps: int, cuts: Any, **options: Any) -> None:
    """Compares a run of some steps with runs that go on from what it saved after each of ``cuts`` steps."""
    workers_later = options.pop("workers_later", options.get("workers", 0))
    amp.scaler.restart()
    whole = Run(1, **options)
    whole.train(steps, path, cuts)
    expected = whole.everything()
    for cut in cuts:
        amp.scaler.restart()
        again = Run(99 + cut, **{**options, "workers": workers_later})
        again.resume(named(path, cut))
        assert again.steps == cut
        again.train(steps)
        assert again.losses == whole.losses[cut:], f"stopped after {cut} of {steps} steps"
        for actual, wanted in zip(again.everything(), expected, strict=True):
            assert torch.equal(actual, wanted), f"stopped after {cut} of {steps} steps"
