"""Two optimizers over the same parameters, as of a model and of its decoder: gradients are unscaled once."""

from __future__ import annotations

from typing import Any

import amp_runtime as amp
import pytest
import torch
from torch import nn


def trained(level: Any, dtype: Any, clip: str, again: bool, combined: bool) -> torch.Tensor:
    amp.shutdown()
    amp.init(level, dtype=dtype, init_scale=256.0, combine_grad=combined)
    torch.manual_seed(0)
    model = amp.prepare_model(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
    whole = torch.optim.SGD(model.parameters(), lr=0.1)
    part = torch.optim.SGD(model[1].parameters(), lr=0.1)
    x = torch.randn(4, 3)
    for _ in range(3):
        for first, second in ((whole, part), (part, whole)):
            model.zero_grad()
            with amp.autocast():
                loss = model(x).float().square().mean()
            amp.scaler.scale(loss).backward()
            if clip:
                amp.clip_grad_norm_(model if clip == "model" else model[1], 0.5)
            amp.scaler.step(first)
            if again:  # on the same gradients
                amp.scaler.step(second)
            amp.scaler.update()
    return torch.cat([value.float().flatten() for value in model.state_dict().values()])


@pytest.mark.parametrize("combined", [False, True])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("clip", ["", "model", "part"])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_the_steps_are_those_of_fp32(level: Any, clip: str, again: bool, combined: bool) -> None:
    expected = trained("O0", "auto", clip, again, False)
    torch.testing.assert_close(trained(level, "fp16", clip, again, combined), expected, rtol=0, atol=1e-4)


def test_gradients_are_accumulated_further_in_one_unit() -> None:
    amp.init("O1", dtype="fp16", init_scale=256.0)
    model = amp.prepare_model(nn.Linear(2, 1, bias=False))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.0) for _ in range(2)]
    for passes in range(1, 4):
        amp.scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        for optimizer in optimizers:
            amp.scaler.step(optimizer)
        amp.scaler.update()
        torch.testing.assert_close(model.weight.grad, torch.full((1, 2), float(passes)))


def test_an_optimizer_and_the_one_around_it_are_one() -> None:
    weights = []
    for level in ("O0", "O2"):
        amp.shutdown()
        amp.init(level, dtype="fp16", init_scale=256.0)  # type: ignore[arg-type]
        torch.manual_seed(0)
        model = amp.prepare_model(nn.Linear(3, 2))
        optimizer = amp.optim.LARC(torch.optim.Adagrad(model.parameters(), lr=0.1))
        for _ in range(3):
            optimizer.zero_grad()
            amp.scaler.scale(model(torch.ones(4, 3)).square().sum()).backward()
            amp.clip_grad_norm_(model, 0.5)
            amp.scaler.step(optimizer)
            amp.scaler.update()
        assert not amp.scaler._sharing
        weights.append(model.state_dict()["weight"].clone())
    torch.testing.assert_close(*weights, rtol=0, atol=2e-3)
