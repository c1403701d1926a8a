"""Skips, clipping and accumulation of sharded gradients, and optimizers that hold what was sharded."""

from __future__ import annotations

from typing import Any

import amp_runtime as amp
import torch
from amp_runtime._core.dtensors import local, whole
from sharding import Net, adamw, batch, begin, made, raised, train
from support import assert_equal_on_ranks, gathered, run_checks
from torch import nn

RANKS = (2, 4)


def check_an_infinity_in_the_shard_of_one_rank_skips_the_step_on_all() -> None:
    for level, dtype in (("O1", "fp16"), ("O1", "bf16"), ("O2", "bf16"), ("O2", "fp16")):
        model, optimizer = made(level, True, dtype=dtype, init_scale=64.0)
        train(model, optimizer, steps=2)
        before = [whole(p).clone() for p in model.parameters()]
        scale, skipped = amp.scaler.get_scale(), amp.scaler.skipped_steps
        x, y = batch(2)
        optimizer.zero_grad()
        with amp.autocast():
            loss = (model(x) - y).square().mean()
        amp.scaler.scale(loss).backward()
        part = local(model.stem.weight.grad)
        if amp.rank() == 1:
            assert part.numel()
            part.view(-1)[0] = float("inf")
        assert gathered(bool(torch.isfinite(part).all())).count(False) == 1
        amp.scaler.step(optimizer)
        assert not amp.scaler.stepped
        amp.scaler.update()
        assert amp.scaler.skipped_steps == skipped + 1
        assert amp.scaler.get_scale() == (scale / 2 if dtype == "fp16" else 1.0)
        for parameter, value in zip(model.parameters(), before, strict=True):
            assert torch.equal(whole(parameter), value)
        assert len(set(gathered(amp.scaler.get_scale()))) == 1
        train(model, optimizer, first=3, steps=1)
        assert amp.scaler.stepped and amp.scaler.skipped_steps == skipped + 1


def check_the_script_cannot_take_shards_out_of_the_agreement() -> None:
    model, optimizer = made("O1", True, dtype="bf16")
    amp.scaler.process_group = False
    model(batch(0)[0]).sum().backward()
    if amp.rank() == 0:
        local(model.head.weight.grad).fill_(float("nan"))
    amp.scaler.step(optimizer)
    amp.scaler.process_group = None
    assert gathered(amp.scaler.stepped) == [False] * amp.world_size()


def check_an_infinity_in_the_loss_of_one_rank_names_the_module_in_the_end() -> None:
    model, optimizer = made("O1", True, dtype="bf16")
    amp.scaler.max_skips = 3

    def failing() -> None:
        for step in range(4):
            optimizer.zero_grad()
            loss = model(batch(step)[0]).sum() * (float("inf") if amp.rank() == 0 else 1.0)
            amp.scaler.scale(loss).backward()
            amp.scaler.step(optimizer)
            amp.scaler.update()

    assert "3 steps in a row" in raised(amp.GradientOverflowError, failing)
    amp.scaler.reset()


def check_the_norm_is_that_of_whole_gradients() -> None:
    norms = []
    for shard in (False, True):
        model, _ = made("O0", shard)
        model(batch(0)[0]).square().mean().backward()
        for order in (2.0, float("inf"), 1.0):
            norms.append(amp.clip_grad_norm_(model.parameters(), 1e9, order))
        norms.append(amp.clip_grad_norm_(model.parameters(), 0.1))
        norms.append(amp.clip_grad_norm_(model, 1e9))  # what clipping has left
        amp.clip_grad_value_(model.parameters(), 1e-3)
        norms.append(amp.clip_grad_norm_(model, 1e9, float("inf")))
    assert all(type(norm) is torch.Tensor for norm in norms)
    half = len(norms) // 2
    torch.testing.assert_close(norms[half:], norms[:half], rtol=1e-5, atol=1e-7)
    assert_equal_on_ranks(norms)


def check_a_norm_over_whole_and_sharded_parameters() -> None:
    norms = []
    for shard in (False, True):
        begin("O0", shard)
        first, second = amp.prepare_model(nn.Linear(5, 7), shard=False), amp.prepare_model(nn.Linear(7, 3))
        second(first(batch(0)[0])).square().mean().backward()
        norms.append(amp.clip_grad_norm_([*first.parameters(), *second.parameters()], 0.1))
        norms.append(amp.clip_grad_norm_([*first.parameters(), *second.parameters()], 0.1))
    torch.testing.assert_close(norms[2:], norms[:2])
    assert_equal_on_ranks(norms)


def check_norms_are_unscaled_first() -> None:
    norms = []
    for dtype in ("bf16", "fp16"):  # the second one has a scale
        model, optimizer = made("O1", True, dtype=dtype, init_scale=1024.0)
        x, y = batch(0)
        with amp.autocast():
            loss = (model(x) - y).square().mean()
        amp.scaler.scale(loss).backward()
        norms.append(amp.clip_grad_norm_(model.parameters(), 1e9))
        amp.scaler.step(optimizer)
        amp.scaler.update()
    torch.testing.assert_close(norms[0], norms[1], rtol=0.02, atol=0.0)


def check_gradients_that_were_accumulated_and_cleared_do_not_come_back() -> None:
    """torch keeps them whole inside the model if it is told to send nothing, where no zero_grad finds them."""
    model, _ = made("O0", True)
    x, _ = batch(0)
    with amp.no_sync(model):
        model(x).square().mean().backward()
    model.zero_grad()
    model(x).square().mean().backward()
    found = [whole(p.grad).clone() for p in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    torch.testing.assert_close(found, [whole(p.grad) for p in model.parameters()])


def check_parameters_without_a_gradient_are_left_alone() -> None:
    class Partly(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.stem(x))

    begin("O1", True, dtype="bf16")
    model = amp.prepare_model(Partly())
    optimizer = adamw(model.parameters())
    before = [whole(p).clone() for p in model.blocks.parameters()]
    train(model, optimizer, steps=2)
    assert all(torch.equal(whole(p), value) for p, value in zip(model.blocks.parameters(), before, strict=True))


def check_parameters_that_one_rank_does_not_use_count_as_zero_there() -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(5, 3), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return self.first(x) + self.second(x) if amp.rank() else self.first(x)

    found = []
    for shard in (False, True):
        begin("O0", shard)
        model = amp.prepare_model(Sometimes(), find_unused_parameters=True)
        model(torch.ones(1, 5)).sum().backward()
        found.append([whole(p.grad).clone() for p in model.parameters()])
    torch.testing.assert_close(*found)


def check_blocks_that_one_rank_leaves_out() -> None:
    class Dropping(Net):
        def forward(self, x: torch.Tensor) -> Any:
            x = self.stem(x) * self.scale
            for number, block in enumerate(self.blocks):
                if number != amp.rank():
                    x = block(x)
            return self.head(x)

    found = []
    for shard in (False, True):
        begin("O0", shard)
        model = amp.prepare_model(Dropping(), find_unused_parameters=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found.append((train(model, optimizer, steps=3), [whole(p.grad).clone() for p in model.parameters()]))
    torch.testing.assert_close(*found)
    begin("O2", True)
    text = raised(ValueError, lambda: amp.prepare_model(Net("batch"), find_unused_parameters=True))
    assert "BatchNorm1d keeps float32 weights" in text


def check_an_optimizer_that_was_built_before_is_refused() -> None:
    begin("O1", True, dtype="bf16")
    model = Net()
    optimizer = adamw(model.parameters())
    text = raised(RuntimeError, lambda: amp.prepare_model(model))
    assert "Build the optimizer after amp.prepare_model" in text and "AdamW" in text
    del optimizer
    other = Net()
    held = [adamw(other.parameters())] if amp.rank() == 1 else []
    assert "optimizer" in raised(RuntimeError, lambda: amp.prepare_model(other))
    held.clear()
    third = Net()
    adamw(third.parameters())  # which nobody keeps
    amp.prepare_model(third)


def check_parameters_from_before_are_refused_in_steps_and_clipping() -> None:
    for level in ("O0", "O1"):
        begin(level, True, dtype="bf16")
        model = Net()
        early = list(model.parameters())
        amp.prepare_model(model)
        model(batch(0)[0]).sum().backward()
        mine = early if amp.rank() == 0 else list(model.parameters())
        optimizer = adamw(mine)
        text = raised(RuntimeError, lambda: amp.scaler.step(optimizer))  # noqa: B023
        assert "Net.stem.weight as it was before amp.prepare_model sharded it" in text
        optimizer = adamw(early)
        assert "trains no more" in raised(RuntimeError, optimizer.step)
        assert "trains no more" in raised(RuntimeError, lambda: amp.clip_grad_norm_(early, 1.0))  # noqa: B023


def check_every_optimizer_of_the_runtime_steps_shards() -> None:
    makers: dict[str, Any] = {
        "AdamW": lambda p: amp.optim.AdamW(p, lr=1e-2),
        "Adam": lambda p: amp.optim.Adam(p, lr=1e-2),
        "SGD": lambda p: amp.optim.SGD(p, lr=1e-2, momentum=0.9),
        "Adagrad": lambda p: amp.optim.Adagrad(p, lr=1e-2),
        "LAMB": lambda p: amp.optim.LAMB(p, lr=1e-2),
        "LARS": lambda p: amp.optim.LARS(p, lr=1e-2, trust_coefficient=0.1),
    }
    for name, make in makers.items():
        model, optimizer = made("O0", False, optim=make)
        expected = train(model, optimizer, steps=3)
        model, optimizer = made("O0", True, optim=make)
        found = train(model, optimizer, steps=3)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


if __name__ == "__main__":
    run_checks(globals())
