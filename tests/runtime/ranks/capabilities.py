"""Two ranks whose devices do not have the same operations in half precision."""

from __future__ import annotations

import warnings
from typing import Any

import amp_runtime as amp
import torch
import torch.nn.functional as F
from amp_runtime._core import capabilities
from amp_runtime._core.context import context
from amp_runtime._precision.lacking import forget_notes, lacking
from support import assert_equal_on_ranks, gathered, run_checks
from torch import nn


def lack_on_one_rank(name: str, rank: int) -> Any:
    """Takes an operation in bfloat16 away from one rank; returns the trial that was there."""
    trial = capabilities.TRIALS[name]

    def refused(make: capabilities.Make) -> Any:
        if make(1).dtype is torch.bfloat16 or torch.is_autocast_enabled("cpu"):
            raise RuntimeError("no such kernel")
        return trial(make)

    capabilities._complaints.clear()
    capabilities._complete.clear()
    if amp.rank() == rank:
        capabilities.TRIALS[name] = refused  # type: ignore[index]
    return trial


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.PReLU(5), nn.Linear(5, 3))


def step(model: Any) -> None:
    optimizer = amp.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 6, generator=torch.Generator().manual_seed(amp.rank())), torch.arange(8) % 3
    for _ in range(2):
        optimizer.zero_grad()
        with amp.autocast():
            loss = F.cross_entropy(model(x), y)
        amp.scaler.scale(loss).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()


def check_what_one_rank_lacks_no_rank_uses() -> None:
    for level in ("O1", "O2"):
        for rank in (0, 1):
            amp.init(level, ddp=True, dtype="bf16")
            trial = lack_on_one_rank("prelu", rank)
            try:
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    model = amp.prepare_model(net())
                    step(model)
            finally:
                capabilities.TRIALS["prelu"] = trial  # type: ignore[index]
            assert "prelu" in lacking("cpu", torch.bfloat16)
            assert_equal_on_ranks(model.parameters())
            weights = gathered([p.dtype for p in amp.unwrap(model).parameters()])
            half = torch.float32 if level == "O1" else torch.bfloat16
            assert weights == [[half, half, torch.float32, half, half]] * 2
            notes = [str(one.message) for one in said if "runs in float32" in str(one.message)]
            assert len(notes) == (amp.rank() == 0), "the main process says it, once"
            where = "no such kernel" if rank == 0 else "on another process's device"
            assert not notes or f"prelu ({where})" in notes[0]
            capabilities.forget_agreement()
            forget_notes()


def check_ranks_that_compute_in_different_types_take_one() -> None:
    amp.init("O2", ddp=True)
    context._automatic.clear()
    computes = capabilities.computes
    capabilities.computes = lambda kind, dtype: amp.rank() == 0 and computes(kind, dtype)
    try:
        assert context.half_dtype("cpu") is (torch.bfloat16 if amp.rank() == 0 else torch.float16)
        model = amp.prepare_model(net())
    finally:
        capabilities.computes = computes
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    step(model)
    assert_equal_on_ranks(model.parameters())


if __name__ == "__main__":
    run_checks(globals())
