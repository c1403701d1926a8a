"""Gradients that no optimizer holds, and rounds that end without a step."""

from __future__ import annotations

import amp_runtime as amp
import pytest
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(torch.relu(self.body(x)))
        return result


def prepared(**settings: object) -> Net:
    amp.init("O1", dtype="fp16", **settings)  # type: ignore[arg-type]
    torch.manual_seed(0)
    model: Net = amp.prepare_model(Net())
    return model


def backward(model: nn.Module, factor: float = 1.0) -> None:
    with torch.autocast("cpu", enabled=False):
        loss = model(torch.ones(1, 3)).sum() * factor
    amp.scaler.scale(loss).backward()


def true_gradients(model: nn.Module) -> list[torch.Tensor]:
    parameters = list(model.parameters())
    with torch.autocast("cpu", enabled=False):
        return list(torch.autograd.grad(model(torch.ones(1, 3)).sum(), parameters))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def equal(one: list[torch.Tensor], other: list[torch.Tensor], factor: float = 1.0) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b * factor) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("early", [True, False])
def test_gradients_that_no_optimizer_holds_become_true_with_those_that_one_holds(early: bool) -> None:
    model = prepared(loss_scale=1024.0)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.0)
    wanted = true_gradients(model)
    backward(model)
    assert equal(gradients(model), wanted, 1024.0)
    if early:
        amp.scaler.unscale_(optimizer)
    else:
        amp.scaler.step(optimizer)
    assert equal(gradients(model), wanted)


def test_they_accumulate_further_as_in_float32() -> None:
    model = prepared(loss_scale=1024.0)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.0)
    wanted = true_gradients(model)
    for count in range(1, 4):
        backward(model)
        amp.scaler.unscale_(optimizer)
        assert equal(gradients(model), wanted, float(count))
        amp.scaler.step(optimizer)
        amp.scaler.update()


def test_an_optimizer_that_is_seen_later_finds_its_gradients_scaled_once() -> None:
    model = prepared(loss_scale=1024.0)
    first = torch.optim.SGD(model.body.parameters(), lr=0.0)
    second = torch.optim.SGD(model.head.parameters(), lr=0.0)
    wanted = true_gradients(model)
    for count in (1.0, 2.0):
        backward(model)
        for optimizer in (first, second):
            amp.scaler.step(optimizer)
        assert equal(gradients(model), wanted, count)


def test_clipping_by_the_norm_of_the_whole_model_sees_true_gradients() -> None:
    model = prepared(loss_scale=1024.0)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.0)
    wanted = nn.utils.get_total_norm(true_gradients(model))
    for clip in (nn.utils.clip_grad_norm_, amp.clip_grad_norm_):
        model.zero_grad()
        backward(model)
        amp.scaler.unscale_(optimizer)
        assert torch.allclose(clip(model.parameters(), 1e9), wanted)


def test_a_step_that_the_script_leaves_out_for_an_overflow_lowers_the_scale() -> None:
    model = prepared(init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stepped = []
    for factor in (float("inf"), float("inf"), 1.0, 1.0, 1.0):
        optimizer.zero_grad()
        backward(model, factor)
        amp.scaler.unscale_(optimizer)
        if not nn.utils.clip_grad_norm_(model.parameters(), 1e9).item() <= 1e6:
            continue  # without a word to the scaler
        amp.scaler.step(optimizer)
        amp.scaler.update()
        stepped.append(amp.scaler.stepped)
    assert stepped[-1] and stepped.count(False) == 1, "one step more is left out, for what was cleared may be kept"
    assert amp.scaler.get_scale() == 128.0


def test_an_overflow_lowers_the_scale_once_however_many_batches_come_before_the_step() -> None:
    model = prepared(init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scales, stepped = [], []
    for factor in (float("inf"), *[1.0] * 9):
        optimizer.zero_grad()
        backward(model, factor)
        amp.scaler.unscale_(optimizer)
        scales.append(amp.scaler.get_scale())
        if len(scales) % 5 == 0:
            amp.scaler.step(optimizer)
            amp.scaler.update()
            stepped.append(amp.scaler.stepped)
    assert scales == [1024.0, *[512.0] * 4, *[256.0] * 5] and stepped == [False, True]


def test_an_overflow_in_gradients_that_were_put_aside_leaves_the_step_out() -> None:
    model = prepared(init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    kept = []
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        backward(model, factor)
        amp.scaler.unscale_(optimizer)
        kept.append([gradient.clone() for gradient in gradients(model)])
    for parameter, one, two in zip(model.parameters(), *kept, strict=True):
        parameter.grad = one + two
    amp.scaler.step(optimizer)
    amp.scaler.update()
    assert equal([p.detach() for p in model.parameters()], before)
    assert amp.scaler.get_scale() < 1024.0


def test_parameters_that_an_optimizer_is_given_later_are_made_true_once() -> None:
    model = prepared(init_scale=1024.0)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": model.body.parameters()})
        expected = true_gradients(model)
        optimizer.zero_grad()
        model.body.zero_grad()
        backward(model)
        amp.scaler.unscale_(optimizer)
        for gradient, true in zip(gradients(model), expected, strict=True):
            torch.testing.assert_close(gradient, true)
        amp.scaler.step(optimizer)
        amp.scaler.update()


def test_infinities_that_copies_of_the_parameters_are_given_skip_the_step() -> None:
    model = prepared(init_scale=1024.0)
    copies = [p.detach().clone().requires_grad_() for p in model.parameters()]
    before = [copy.detach().clone() for copy in copies]
    optimizer = torch.optim.SGD(copies, lr=0.1)
    for factor, is_skipped in ((float("inf"), True), (1.0, False)):
        model.zero_grad()
        backward(model, factor)
        amp.scaler.unscale_(optimizer)
        for copy, parameter in zip(copies, model.parameters(), strict=True):
            assert parameter.grad is not None
            copy.grad = parameter.grad.clone()
        amp.scaler.step(optimizer)
        amp.scaler.update()
        assert equal([copy.detach() for copy in copies], before) is is_skipped
        assert amp.scaler.get_scale() == 512.0


def test_infinities_that_no_optimizer_holds_skip_no_step() -> None:
    model = prepared(init_scale=1024.0)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    before = model.head.weight.detach().clone()
    backward(model)
    assert model.body.weight.grad is not None
    model.body.weight.grad.fill_(float("inf"))
    amp.scaler.step(optimizer)
    amp.scaler.update()
    assert not torch.equal(model.head.weight, before)
    assert amp.scaler.get_scale() == 1024.0
