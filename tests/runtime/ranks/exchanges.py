"""What a step sends: as many exchanges as torch's DistributedDataParallel makes by hand, and none of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import amp_runtime as amp
import torch
import torch.distributed as dist
from support import run_checks
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

WARM_UP = 4  # the ranks agree at an optimizer's first step, and torch orders its buckets anew after the first pass


class Sent(TorchDispatchMode):
    """Counts the collectives that are called inside, by whomever."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.calls.append(func.name())
        return func(*args, **(kwargs or {}))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def sent_by(step: Callable[[], None]) -> list[str]:
    for _ in range(WARM_UP):
        step()
    with Sent() as sent:
        step()
    return sent.calls


def sent_by_hand() -> list[str]:
    model = nn.parallel.DistributedDataParallel(net())
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

    return sent_by(step)


def ours(level: str, dtype: str, *, bad: bool = False, delayed: bool = False, **settings: Any) -> Callable[[], None]:
    amp.init(level, ddp=True, dtype=dtype, **settings)
    amp.scaler.process_group = None
    model = amp.prepare_model(net(), delay_allreduce=delayed)
    optimizer = amp.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with amp.autocast():
            loss = model(torch.ones(4, 8)).float().square().mean()
        amp.scaler.scale(loss * float("nan") if bad and amp.rank() else loss).backward()
        amp.clip_grad_norm_(model.parameters(), 1.0)
        amp.scaler.step(optimizer)
        amp.scaler.update()

    return step


def check_a_step_sends_what_torch_sends() -> None:
    expected = sent_by_hand()
    assert len(expected) == 1
    for level in ("O0", "O1", "O2", "O3"):
        for dtype in ("fp16", "bf16"):
            for settings in ({}, {"delayed": True}, {"delayed": True, "combine_grad": level != "O0"}):
                assert sent_by(ours(level, dtype, **settings)) == expected, (level, dtype, settings)


def check_a_skipped_step_sends_no_more() -> None:
    for dtype in ("fp16", "bf16"):
        step = ours("O1", dtype, bad=True)
        assert len(sent_by(step)) == 1
        assert amp.scaler.skipped_steps == WARM_UP + 1 and not amp.scaler.stepped


def check_the_ranks_agree_where_the_scale_was_set() -> None:
    step = ours("O1", "fp16")
    sent_by(step)
    amp.scaler.update(2.0**10)
    for extra in (1, 0):
        with Sent() as sent:
            step()
        assert len(sent.calls) == 1 + extra


def check_a_chosen_group_agrees_at_every_step() -> None:
    step = ours("O1", "bf16")
    amp.scaler.process_group = dist.group.WORLD
    assert len(sent_by(step)) == 2
    amp.scaler.process_group = None


if __name__ == "__main__":
    run_checks(globals())
