"""Optimizers whose step takes a closure."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import amp_runtime as amp
import pytest
import torch
from torch import nn

INF = float("inf")


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = amp.prepare_model(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
    return model, torch.randn(8, 3), torch.randn(8, 1)


def closure_of(
    model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor, spoil: Callable[[int], float] = lambda call: 1.0
) -> Callable[[], torch.Tensor]:
    calls = []

    def closure() -> torch.Tensor:
        calls.append(1)
        optimizer.zero_grad()
        with amp.autocast():
            loss = (model(x).float() - y).square().mean() * spoil(len(calls))
        amp.scaler.scale(loss).backward()
        return loss

    return closure


def train(level: Any, dtype: Any, make: Callable[[Any], Any], steps: int = 5) -> float:
    amp.init(level, dtype=dtype)
    model, x, y = problem()
    optimizer = make(model.parameters())
    closure = closure_of(model, optimizer, x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(steps):
            amp.scaler.step(optimizer, closure)
            assert amp.scaler.stepped
            amp.scaler.update()
    return closure().item()


def lbfgs(parameters: Any) -> Any:
    return torch.optim.LBFGS(parameters, lr=0.5, max_iter=4, line_search_fn="strong_wolfe")


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.parametrize("make", [lbfgs, sgd])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_every_level_learns_with_closures(make: Any, level: Any, dtype: Any) -> None:
    start, full = train("O0", dtype, make, 0), train("O0", dtype, make)
    assert train(level, dtype, make) == pytest.approx(full, abs=0.15 * (start - full))


def test_at_o2_the_masters_move_where_half_would_round_the_step_away() -> None:
    amp.init("O2", dtype="fp16")
    model = amp.prepare_model(nn.Linear(1, 1, bias=False))
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 1)).sum()
        amp.scaler.scale(loss).backward()
        return loss

    with pytest.warns(UserWarning, match="closure"):
        for _ in range(20):
            amp.scaler.step(optimizer, closure)
    assert model.weight.item() == pytest.approx(1 - 20e-4, abs=5e-4)
    assert next(amp.master_params(optimizer)).item() == pytest.approx(1 - 20e-4, abs=1e-6)


def test_float16_warns_once_and_other_types_do_not() -> None:
    for dtype, expected in (("fp16", 1), ("bf16", 0)):
        amp.init("O1", dtype=dtype)  # type: ignore[arg-type]
        model, x, y = problem()
        optimizer = lbfgs(model.parameters())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                amp.scaler.step(optimizer, closure_of(model, optimizer, x, y))
        messages = [str(w.message) for w in caught if "closure" in str(w.message)]
        assert len(messages) == expected
        assert all("LBFGS" in message and "bf16" in message for message in messages)


@pytest.mark.parametrize("make", [lbfgs, lambda parameters: torch.optim.Adam(parameters, lr=0.1)])
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("bad_call", [1, 3])
def test_an_overflow_at_any_call_undoes_the_step(make: Any, level: Any, bad_call: int) -> None:
    amp.init(level, dtype="bf16")
    model, x, y = problem()
    optimizer = make(model.parameters())
    amp.scaler.step(optimizer, closure_of(model, optimizer, x, y))
    before = [p.detach().clone() for p in model.parameters()]
    state = str(optimizer.state_dict()["state"])
    result = amp.scaler.step(
        optimizer, closure_of(model, optimizer, x, y, lambda call: INF if call >= bad_call else 1.0)
    )
    if bad_call == 3 and not isinstance(optimizer, torch.optim.LBFGS):
        assert amp.scaler.stepped, "it calls the closure once"
        return
    assert result is None and amp.scaler.stepped is False and amp.scaler.skipped_steps == 1
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert str(optimizer.state_dict()["state"]) == state
    amp.scaler.update()
    amp.scaler.step(optimizer, closure_of(model, optimizer, x, y))
    assert amp.scaler.stepped and all(torch.isfinite(p).all() for p in model.parameters())


def test_the_scale_does_not_fall_because_of_unscaled_losses() -> None:
    amp.init("O1", dtype="fp16")
    model, x, y = problem()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="closure"):
        amp.scaler.step(optimizer, closure_of(model, optimizer, x, y, lambda call: INF))
    amp.scaler.update()
    assert amp.scaler.get_scale() == 65536.0


def test_a_scaled_step_may_follow_one_with_a_closure() -> None:
    amp.init("O1", dtype="fp16")
    model = amp.prepare_model(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def closure() -> torch.Tensor:
        loss = model(torch.ones(1, 3)).sum()
        amp.scaler.scale(loss).backward()
        return loss

    with pytest.warns(UserWarning, match="closure"):
        amp.scaler.step(optimizer, closure=closure)
    assert model.weight.grad.tolist() == [[1.0] * 3], "not scaled"
    closure()
    amp.scaler.step(optimizer)
    assert model.weight.grad.tolist() == [[2.0] * 3], "accumulated, scaled and unscaled"
    closure()
    amp.scaler.step(optimizer, closure)
    assert model.weight.grad.tolist() == [[4.0] * 3], "what waited was unscaled before the closure ran"


def test_sharpness_aware_steps_use_gradients_from_before_the_closure() -> None:
    class Sam(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            with torch.no_grad():
                moves = [p.grad / (p.grad.norm() + 1e-12) * 0.05 for g in self.param_groups for p in g["params"]]
                for p, move in zip(self.param_groups[0]["params"], moves, strict=True):
                    p.add_(move)
            with torch.enable_grad():
                closure()
            with torch.no_grad():
                for p, move in zip(self.param_groups[0]["params"], moves, strict=True):
                    p.sub_(move)
            super().step()

    def run(level: Any) -> list[float]:
        amp.init(level, dtype="fp16")
        model, x, y = problem()
        optimizer = Sam(model.parameters(), lr=0.1)

        def loss_of() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            amp.scaler.scale(loss).backward()
            return loss

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(4):
                loss_of()
                amp.scaler.step(optimizer, loss_of)
                amp.scaler.update()
        return [value for p in model.parameters() for value in p.flatten().tolist()]

    assert run("O1") == pytest.approx(run("O0"), rel=1e-5, abs=1e-6)


def test_at_o0_the_closure_is_the_optimizer_s_own_business() -> None:
    amp.init("O0")
    model, x, y = problem()
    optimizer = lbfgs(model.parameters())
    received = []
    plain = optimizer.step
    optimizer.step = lambda closure: received.append(closure) or plain(closure)
    closure = closure_of(model, optimizer, x, y)
    assert amp.scaler.step(optimizer, closure) is not None
    assert received == [closure] and amp.scaler.stepped
