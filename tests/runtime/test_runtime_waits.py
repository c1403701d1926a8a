"""How often a step waits for the device and goes over the gradients: no more often than torch by hand.

The device is a CPU that notes where CUDA would wait; see ``like_cuda.py``. What several ranks send is counted in
``ranks/exchanges.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import amp_runtime as amp
import pytest
import torch
from like_cuda import LikeCuda
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WARM_UP = 3  # state is made at the first step, and momentum cannot be skipped on the device then
LEVELS = ["O1", "O2", "O3"]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, tuple[Make, Make]] = {
    # by hand, ours
    "SGD": (lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "SGD, ours": (lambda p: torch.optim.SGD(p, lr=0.1, fused=True), lambda p: amp.optim.SGD(p, lr=0.1)),
    "momentum": (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
        lambda p: amp.optim.SGD(p, lr=0.1, momentum=0.9),
    ),
    "Adam": (lambda p: torch.optim.Adam(p), lambda p: torch.optim.Adam(p)),
    "Adam, fused": (lambda p: torch.optim.Adam(p, fused=True), lambda p: torch.optim.Adam(p, fused=True)),
    "Adam, ours": (lambda p: torch.optim.Adam(p, fused=True), lambda p: amp.optim.Adam(p)),
    "AdamW": (lambda p: torch.optim.AdamW(p), lambda p: torch.optim.AdamW(p)),
    "AdamW, ours": (lambda p: torch.optim.AdamW(p, fused=True), lambda p: amp.optim.AdamW(p)),
    "Adagrad, ours": (lambda p: torch.optim.Adagrad(p), lambda p: amp.optim.Adagrad(p)),
    "FusedAdam": (lambda p: torch.optim.AdamW(p, fused=True), lambda p: amp.optim.FusedAdam(p, capturable=True)),
    "RMSprop": (lambda p: torch.optim.RMSprop(p), lambda p: torch.optim.RMSprop(p)),
    "LAMB": (lambda p: torch.optim.RMSprop(p), lambda p: amp.optim.LAMB(p)),
}
NOT_FUSED = {"RMSprop", "LAMB"}
"""What torch has no fused kernel for: whether to step at all is asked once, as torch's scaler does in float16."""


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


class Step:
    """One step, by hand or ours; ``between`` is called where the gradients are complete."""

    def __init__(self, between: Callable[[list[torch.Tensor]], None] = lambda gradients: None) -> None:
        self.between = between

    def by_hand(self, level: str, dtype: torch.dtype, make: Make, device: str, clip: bool) -> Callable[[], None]:
        model = net().to(device)
        if level != "O1":
            model.to(dtype)
        halves = list(model.parameters())
        stepped = [p.detach().float() for p in halves] if level == "O2" else halves
        optimizer = make(stepped)
        scaler = torch.amp.GradScaler(device, enabled=dtype is torch.float16)
        if level == "O3":  # torch refuses to unscale half gradients, whose numbers may not fit
            plain = scaler._unscale_grads_
            scaler._unscale_grads_ = lambda *args: plain(*args[:3], True)  # type: ignore[method-assign]
        x = torch.randn(4, 8, device=device)

        def step() -> None:
            for parameter in halves:
                parameter.grad = None
            with torch.autocast(device, dtype, enabled=level == "O1"):
                loss = model(x if level == "O1" else x.to(dtype)).float().square().mean()
            scaler.scale(loss).backward()
            if level == "O2":
                for half, full in zip(halves, stepped, strict=True):
                    full.grad = half.grad.float()
            self.between([p.grad for p in stepped])
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(stepped, 1.0)
            scaler.step(optimizer)
            scaler.update()
            if level == "O2":
                with torch.no_grad():
                    torch._foreach_copy_(halves, stepped)

        return step

    def ours(self, level: str, dtype: torch.dtype, make: Make, device: str, clip: bool) -> Callable[[], None]:
        amp.shutdown()
        amp.init(level, dtype=dtype)
        model = amp.prepare_model(net().to(device))
        optimizer = make(model.parameters())
        x = torch.randn(4, 8, device=device)

        def step() -> None:
            optimizer.zero_grad()
            with amp.autocast():
                loss = model(x).float().square().mean()
            amp.scaler.scale(loss).backward()
            self.between([p.grad for p in model.parameters()])
            if clip:
                amp.scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            amp.scaler.step(optimizer)
            amp.scaler.update()

        return step


def waits(step: Callable[[], None], cuda: LikeCuda) -> list[str]:
    for _ in range(WARM_UP):
        step()
    before = len(cuda.waits)
    step()
    return cuda.waits[before:]


CASES = [(name, False) for name in OPTIMIZERS] + [("AdamW, ours", True), ("SGD", True)]


@pytest.mark.parametrize(("name", "clip"), CASES, ids=lambda value: value if isinstance(value, str) else "-c" * value)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("level", LEVELS)
def test_a_step_waits_no_more_often_than_torch_s(level: str, dtype: str, name: str, clip: bool) -> None:
    by_hand, ours = OPTIMIZERS[name]
    with LikeCuda() as cuda:
        expected: list[str] = []
        if not (level == "O3" and dtype == "bf16"):  # which CUDA cannot unscale; without a scaler there is no wait
            expected = waits(Step().by_hand(level, DTYPES[dtype], by_hand, "cuda", clip), cuda)
        got = waits(Step().ours(level, DTYPES[dtype], ours, "cuda", clip), cuda)
    allowed = max(len(expected), 1) if name in NOT_FUSED else len(expected)
    assert len(got) <= allowed, got


@pytest.mark.parametrize("settings", [{"num_losses": 2}, {"combine_grad": True}, {"loss_scale": 128.0}])
def test_nor_with_other_settings(settings: dict[str, Any]) -> None:
    with LikeCuda() as cuda:
        amp.init("O1", dtype="fp16", **settings)
        model = amp.prepare_model(net().cuda())
        optimizer = amp.optim.AdamW(model.parameters())

        def step() -> None:
            optimizer.zero_grad()
            with amp.autocast():
                loss = model(torch.ones(4, 8, device="cuda")).square().mean()
            amp.scaler.scale(loss).backward()
            amp.clip_grad_norm_(optimizer, 1.0)
            amp.scaler.step(optimizer)
            amp.scaler.update()

        assert waits(step, cuda) == []


@pytest.mark.parametrize("optim", [torch.optim, amp.optim], ids=["torch", "ours"])
def test_nor_with_a_scheduler_and_once_with_a_step_of_the_script_s_own(optim: Any) -> None:
    with LikeCuda() as cuda:
        amp.init("O1", dtype="fp16")
        model = amp.prepare_model(net().cuda())
        optimizer = optim.AdamW(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)

        def step() -> None:
            optimizer.zero_grad()
            amp.scaler.scale(model(torch.ones(4, 8, device="cuda")).square().mean()).backward()
            amp.scaler.step(optimizer)
            amp.scaler.update()
            schedule.step()

        assert waits(step, cuda) == []
        made, calls = optimizer.step, []
        optimizer.step = lambda *args: (calls.append(1), made(*args))[1]  # type: ignore[method-assign, assignment]
        assert len(waits(step, cuda)) >= 1, "what it does besides the step is left out with it"


def test_what_somebody_asks_for_is_read_then() -> None:
    with LikeCuda() as cuda:
        amp.init("O1", dtype="fp16")
        model = amp.prepare_model(net().cuda())
        optimizer = amp.optim.AdamW(model.parameters())
        for bad in (False, True, True, False):
            optimizer.zero_grad()
            loss = model(torch.ones(4, 8, device="cuda")).square().mean()
            amp.scaler.scale(loss * (float("inf") if bad else 1.0)).backward()
            amp.scaler.step(optimizer)
            amp.scaler.update()
        before = len(cuda.waits)
        assert amp.scaler.skipped_steps == 2 and len(cuda.waits) == before + 1, "one wait for all of them"
        assert amp.scaler.stepped and amp.scaler.get_scale() == 2.0**14
        assert int(optimizer.state_dict()["state"][0]["step"]) == 2, "a skipped step does not count"


def test_a_step_that_a_cuda_graph_captures_reads_nothing_and_counts_nothing() -> None:
    with LikeCuda() as cuda:
        amp.init("O1", dtype="fp16")
        amp.scaler.max_skips = 2
        model = amp.prepare_model(net().cuda())
        optimizer = amp.optim.AdamW(model.parameters(), capturable=False)
        loss = torch.zeros((), device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            amp.scaler.scale(model(torch.ones(4, 8, device="cuda")).square().mean() + loss).backward()
            amp.scaler.step(optimizer)
            amp.scaler.update()

        step()
        before = len(cuda.waits)
        with mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: True):
            for _ in range(5):
                step()
        assert cuda.waits[before:] == []


class Passes(TorchDispatchMode):
    """Counts the operations, from :meth:`watch` on, that read or write the memory of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: set[int] = set()
        self.seen: list[str] = []

    def watch(self, gradients: list[torch.Tensor]) -> None:
        self.memory = {gradient.untyped_storage().data_ptr() for gradient in gradients}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if "detach" not in func.name() and any(t.untyped_storage().data_ptr() in self.memory for t in tensors):
            self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["SGD, ours", "momentum", "AdamW, ours"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_goes_over_the_gradients_as_often_as_torch_s(dtype: str, name: str) -> None:
    counts = []
    for place, kind in enumerate(("by_hand", "ours")):
        passes = Passes()
        step = getattr(Step(passes.watch), kind)("O1", DTYPES[dtype], OPTIMIZERS[name][place], "cpu", False)
        for _ in range(WARM_UP):
            step()
        passes.memory = set()  # what the step before held is free, and taken for other things
        with passes:
            step()
        counts.append(passes.seen)
    by_hand, ours = counts
    # In bfloat16 torch checks nothing, and a NaN destroys the parameters: the check is one pass.
    assert len(ours) == len(by_hand) + (dtype == "bf16"), counts
