"""Naming the module that overflowed."""

from __future__ import annotations

import random
from typing import Any

import amp_runtime as amp
import pytest
import torch
from torch import nn

INF = float("inf")


class Exp(nn.Module):
    """exp(12) is more than float16 holds."""

    def __init__(self, shift: float = 12.0) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x.float() + self.shift).half()  # whatever autocast does with exp


class SteepBackward(nn.Module):
    """Finite forward, infinite backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(x * 0)


class Layer(nn.Module):
    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.attention(x, x, x, need_weights=False)[0]) * self.activation(x).float()


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(nn.ReLU()), Layer(Exp()), Layer(nn.ReLU())])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Masked(nn.Module):
    """Puts infinities out on purpose, and lets none of them through."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Threshold(0.0, -INF)
        self.bad = SteepBackward()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(self.mask(torch.tensor([-1.0, 1.0, 2.0])), 0)
        return self.bad(self.linear(x)) * weights


def mlp(middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), middle, nn.Linear(3, 1))


def hooks_in(model: nn.Module) -> int:
    modules = list(model.modules())
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in modules) + sum(
        len(p._backward_hooks or ()) for p in model.parameters()
    )


def until_error(model: nn.Module, x: torch.Tensor, skips: int = 3) -> amp.GradientOverflowError:
    amp.scaler.max_skips = skips
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    usual = hooks_in(model)
    for number in range(skips):
        optimizer.zero_grad()
        assert hooks_in(model) == usual or number == skips - 1, "only the last step is observed"
        with amp.autocast():
            loss = model(x).float().square().mean()
        amp.scaler.scale(loss).backward()
        amp.scaler.step(optimizer)
        if number == skips - 1:
            with pytest.raises(amp.GradientOverflowError) as caught:
                amp.scaler.update()
            assert hooks_in(model) == usual, "hooks stay behind"
            return caught.value
        amp.scaler.update()
    raise AssertionError


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_an_exp_that_overflows_is_named_with_its_inputs(level: Any) -> None:
    amp.init(level, dtype="fp16")
    torch.manual_seed(0)
    model = amp.prepare_model(mlp(Exp()))
    error = until_error(model, torch.ones(2, 3))
    location = error.location
    assert location is not None
    assert (location.module, location.type_name, location.what) == ("Sequential.2", "Exp", "output")
    assert location.dtype is torch.float16 and location.finite_inputs
    assert location.largest_input is not None and 0 < location.largest_input < 10
    for part in ("3 steps in a row", "Sequential.2 (Exp)", "output", "float16", f"{location.largest_input:g}"):
        assert part in str(error)


def test_a_layer_of_a_transformer_is_named() -> None:
    amp.init("O1", dtype="fp16")
    torch.manual_seed(0)
    model = amp.prepare_model(Transformer())
    error = until_error(model, torch.randn(2, 3, 4))
    assert error.location is not None and error.location.module == "Transformer.layers.1.activation"


def test_a_backward_that_overflows_is_named() -> None:
    amp.init("O1", dtype="fp16")
    model = amp.prepare_model(mlp(SteepBackward()))
    error = until_error(model, torch.ones(2, 3))
    assert error.location is not None
    assert (error.location.module, error.location.what) == ("Sequential.2", "gradient of its input")
    assert "Sequential.2 (SteepBackward) is the first module whose gradient" in str(error)


def test_infinities_on_purpose_are_not_blamed() -> None:
    amp.init("O1", dtype="fp16")
    model = amp.prepare_model(Masked())
    error = until_error(model, torch.ones(2, 3))
    assert error.location is not None and error.location.module == "Masked.bad"


def test_bad_data_is_told_from_a_bad_module() -> None:
    amp.init("O1", dtype="fp16")
    model = amp.prepare_model(mlp(nn.ReLU()))
    error = until_error(model, torch.full((2, 3), INF))
    assert error.location is not None and error.location.module == "Sequential.0" and not error.location.finite_inputs
    assert "look at the data" in str(error)


def test_a_gradient_after_the_last_module_is_told_by_what_it_belongs_to() -> None:
    amp.init("O1", dtype="fp16")
    model = amp.prepare_model(nn.Sequential(nn.Linear(3, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        amp.scaler.scale(torch.sqrt(model(torch.ones(1, 3)) * 0).sum()).backward()
        amp.scaler.step(optimizer)

    location = amp.scaler.locate_overflow(step)
    assert location is not None and location.what == "gradient of its output"


def test_a_parameter_whose_gradient_overflows_is_named() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.sqrt(self.weight)

    amp.init("O1", dtype="fp16")
    model = amp.prepare_model(mlp(Scale()))
    error = until_error(model, torch.ones(2, 3))
    assert error.location is not None
    assert (error.location.module, error.location.what) == ("Sequential.2", "gradient of its parameter weight")


def test_a_good_step_ends_the_observation() -> None:
    amp.init("O1", dtype="fp16")
    model = amp.prepare_model(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.scaler.max_skips = 3
    usual = hooks_in(model)
    for factor in (INF, INF, 1.0, INF):
        optimizer.zero_grad()
        amp.scaler.scale(model(torch.ones(1, 3)).sum() * factor).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
    assert hooks_in(model) == usual


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_locating_replays_a_step_and_leaves_no_trace(level: Any) -> None:
    amp.init(level, dtype="fp16")
    torch.manual_seed(0)
    model = amp.prepare_model(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(), Exp(), nn.Linear(3, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x = torch.randn(4, 3)

    def step() -> None:
        random.random()
        optimizer.zero_grad()
        with amp.autocast():
            loss = model(x).float().square().mean()
        amp.scaler.scale(loss).backward()
        amp.scaler.unscale_(optimizer)
        amp.clip_grad_norm_(model, 1.0)
        amp.scaler.step(optimizer)
        amp.scaler.update()

    step()
    gradients = [p.grad for p in model.parameters()]
    before = [t.clone() for t in (*model.parameters(), *model.buffers(), *gradients)]
    states = torch.get_rng_state(), random.getstate(), amp.scaler.state_dict(), str(optimizer.state_dict())
    usual = hooks_in(model)
    location = amp.scaler.locate_overflow(step)
    assert location is not None and location.module == "Sequential.3"
    after = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
    assert all(torch.equal(a, b) or a.isnan().any() for a, b in zip(before, after, strict=True))
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert amp.scaler.state_dict() == states[2] and str(optimizer.state_dict()) == states[3]
    assert hooks_in(model) == usual


def test_locating_finds_nothing_in_a_good_step_and_puts_back_what_raises() -> None:
    amp.init("O1", dtype="fp16")
    model = amp.prepare_model(nn.Linear(3, 1))
    usual = hooks_in(model)
    assert amp.scaler.locate_overflow(lambda: amp.scaler.scale(model(torch.ones(1, 3)).sum()).backward()) is None
    assert model.weight.grad is None

    def fails() -> None:
        model.weight.data.zero_()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        amp.scaler.locate_overflow(fails)
    assert model.weight.abs().sum() > 0 and hooks_in(model) == usual


def test_locating_works_on_models_that_were_not_prepared() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Exp())
    with pytest.raises(ValueError, match="models="):
        amp.scaler.locate_overflow(lambda: None, models=[])
    location = amp.scaler.locate_overflow(lambda: model(torch.ones(1, 3)), models=[model])
    assert location is not None and location.module == "Sequential.1"
