"""Two ranks that share a GPU, on a CPU that refuses what CUDA refuses."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import Any

import amp_runtime as amp
import torch
import torch.nn.functional as F
from support import assert_equal_on_ranks, run_checks
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "shared"))

from like_cuda import LikeCuda


def prepared(level: Any, dtype: Any, **options: Any) -> Any:
    # Synchronised batch norm on CUDA is torch's kernels, for which there is nothing on a CPU.
    amp.init(level, ddp=True, dtype=dtype, init_scale=8.0, sync_bn=False, combine_grad="combine" in options)
    torch.manual_seed(0)
    layers = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.PReLU(), nn.LayerNorm(6), nn.Linear(6, 3)
    return amp.prepare_model(nn.Sequential(*layers).to(amp.device()), delay_allreduce=options.get("delay", False))


def train(model: Any, optimizer: Any, clip: bool = False) -> None:
    for number in range(2):
        x = (torch.linspace(-1, 1, 20).view(5, 4) * (amp.rank() + number + 1)).to(amp.device())
        optimizer.zero_grad()
        with amp.autocast():
            loss = F.cross_entropy(model(x).float(), torch.tensor([0, 1, 2, 0, 1]).to(x.device))
        amp.scaler.scale(loss).backward()
        if clip:
            amp.clip_grad_norm_(model.parameters(), 1.0)
        amp.scaler.step(optimizer)
        amp.scaler.update()
    amp.reduce_mean(loss.detach())
    assert amp.gather(loss.detach()).is_cuda
    assert all(parameter.is_cuda and bool(parameter.isfinite().all()) for parameter in model.parameters())
    assert_equal_on_ranks(parameter.cpu() for parameter in model.parameters())


def check_levels() -> None:
    ways: tuple[tuple[str, dict[str, bool]], ...] = (
        ("bf16", {}), ("fp16", {"delay": True}), ("bf16", {"delay": True, "combine": True}),
    )  # fmt: skip
    for level, (dtype, options) in product(("O0", "O1", "O2", "O3"), ways):
        with LikeCuda():
            model = prepared(level, dtype, **options)
            train(model, amp.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), clip=dtype == "bf16")


def check_optimizers() -> None:
    for name in ("AdamW", "Adagrad", "FusedAdam", "LAMB", "NovoGrad"):
        with LikeCuda():
            model = prepared("O2", "bf16")
            train(model, getattr(amp.optim, name)(model.parameters(), lr=0.01))


def check_closures() -> None:
    with LikeCuda():
        model = prepared("O2", "bf16")
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
        x = torch.linspace(-1, 1, 20).view(5, 4).to(amp.device())

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).float().square().mean()
            loss.backward()
            return loss

        amp.scaler.step(optimizer, closure)
        amp.scaler.update()
        assert_equal_on_ranks(parameter.cpu() for parameter in model.parameters())


if __name__ == "__main__":
    run_checks(globals())
