"""Clipping of gradients by their true size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import amp_runtime as amp
import pytest
import torch
from torch import nn

INF = float("inf")


def model_of() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = amp.prepare_model(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
    return model


def train(
    level: Any, clip: Callable[[Any, nn.Module], Any], steps: int = 4, dtype: Any = "fp16", **settings: Any
) -> tuple[list[float], list[float]]:
    amp.init(level, dtype=dtype, init_scale=2.0**8, **settings)
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    x, y = torch.randn(8, 3), 10 * torch.randn(8, 1)
    norms = []
    for number in range(steps):
        optimizer.zero_grad(set_to_none=bool(number % 2))
        with amp.autocast(enabled=False):
            loss = (model(x).float() - y).square().mean()
        amp.scaler.scale(loss).backward()
        norms.append(float(clip(optimizer, model) or 0.0))
        amp.scaler.step(optimizer)
        amp.scaler.update()
        assert amp.scaler.stepped
    return norms, [value for p in model.parameters() for value in p.float().flatten().tolist()]


def plain_norm(optimizer: Any, model: nn.Module) -> Any:
    return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def plain_value(optimizer: Any, model: nn.Module) -> Any:
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)


NORMS: dict[str, Callable[[Any, nn.Module], Any]] = {
    "optimizer": lambda optimizer, model: amp.clip_grad_norm_(optimizer, 1.0),
    "model": lambda optimizer, model: amp.clip_grad_norm_(model, 1.0),
    "parameters": lambda optimizer, model: amp.clip_grad_norm_(model.parameters(), 1.0),
    "after unscale_": lambda optimizer, model: (amp.scaler.unscale_(optimizer), amp.clip_grad_norm_(model, 1.0))[1],
    "twice": lambda optimizer, model: (amp.clip_grad_norm_(model, 1.0), amp.clip_grad_norm_(model, 1.0))[0],
    "masters": lambda optimizer, model: (
        amp.scaler.unscale_(optimizer),
        amp.clip_grad_norm_(amp.master_params(optimizer), 1.0),
    )[1],
}


@pytest.mark.parametrize("how", NORMS)
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("combined", [False, True])
def test_the_norm_is_the_true_one_and_so_are_the_steps(how: str, level: Any, combined: bool) -> None:
    expected = train("O0", plain_norm)
    got = train(level, NORMS[how], combine_grad=combined)
    tolerance = 1e-5 if level in ("O0", "O1") else 0.02
    assert got[0] == pytest.approx(expected[0], rel=tolerance) and min(got[0]) > 1
    assert got[1] == pytest.approx(expected[1], rel=tolerance, abs=tolerance)
    if level == "O0" and how != "twice":  # a clipped norm is only nearly 1, so torch clips it again
        assert got == expected


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_values_are_clipped_in_true_units(level: Any) -> None:
    expected = train("O0", plain_value)
    tolerance = 1e-5 if level in ("O0", "O1") else 0.02
    for target in (lambda optimizer, model: optimizer, lambda optimizer, model: model.parameters()):
        got = train(level, lambda o, m, of=target: amp.clip_grad_value_(of(o, m), 0.1))  # type: ignore[misc]
        assert got[1] == pytest.approx(expected[1], rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, INF])
def test_every_order_of_norm_before_and_after_the_optimizer_is_known(order: float) -> None:
    amp.init("O1", dtype="fp16")
    model = nn.Linear(3, 1)  # not prepared, and of no optimizer that the scaler has seen
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(2):
        optimizer.zero_grad()
        amp.scaler.scale((model(torch.tensor([[1.0, 2.0, 3.0]])) * 2).sum()).backward()
        norm = amp.clip_grad_norm_(model.parameters(), 0.5, order)
        true = torch.tensor([2.0, 4.0, 6.0, 2.0])
        assert norm.item() == pytest.approx(torch.linalg.vector_norm(true, order).item(), rel=1e-5)
        amp.scaler.step(optimizer)
        clipped = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert clipped.tolist() == pytest.approx((true * 0.5 / norm).tolist(), rel=1e-4)
        amp.scaler.update()


def test_a_part_of_the_parameters_may_be_clipped() -> None:
    amp.init("O1", dtype="fp16")
    model = amp.prepare_model(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(2):
        optimizer.zero_grad()
        amp.scaler.scale(model(torch.full((1, 3), 4.0)).sum()).backward()
        assert amp.clip_grad_norm_(model.bias, 0.25).item() == 1.0
        amp.clip_grad_value_([model.weight], 3.0)
        amp.scaler.step(optimizer)
        assert model.weight.grad.tolist() == [[3.0] * 3] and model.bias.grad.tolist() == pytest.approx([0.25])
        amp.scaler.update()


def test_an_overflow_gives_a_norm_that_is_not_finite_and_the_step_is_skipped() -> None:
    for known in (False, True):
        amp.init("O1", dtype="fp16", init_scale=2.0 ** (8 + known))
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if known:
            amp.scaler.step(optimizer)
        before = [p.detach().clone() for p in model.parameters()]
        amp.scaler.scale(model(torch.ones(1, 3)).sum() * INF).backward()
        with pytest.raises(RuntimeError, match="finite"):
            amp.clip_grad_norm_(optimizer if known else model, 1.0, error_if_nonfinite=True)
        assert not torch.isfinite(amp.clip_grad_norm_(model, 1.0))
        amp.scaler.step(optimizer)
        assert not amp.scaler.stepped
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_sparse_gradients_are_clipped() -> None:
    amp.init("O1", dtype="fp16")
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.0)
    for _ in range(2):
        optimizer.zero_grad()
        amp.scaler.scale(table(torch.tensor([1, 1, 3])).sum()).backward()
        assert amp.clip_grad_norm_(table, 1.0).item() == pytest.approx(10**0.5)
        amp.scaler.step(optimizer)
        assert table.weight.grad.to_dense().norm().item() == pytest.approx(1.0, rel=1e-5)
        amp.scaler.update()


def test_without_gradients_the_norm_is_zero() -> None:
    for level in ("O0", "O1"):
        amp.init(level, dtype="fp16")  # type: ignore[arg-type]
        assert amp.clip_grad_norm_(nn.Linear(1, 1), 1.0).item() == 0.0
        amp.scaler.scale(torch.ones(()))
        assert amp.clip_grad_norm_([], 1.0).item() == 0.0


def test_wrong_arguments_are_repeated() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(TypeError, match=r"clip_grad_norm_ got 'model'.*optimizer"):
        amp.clip_grad_norm_("model", 1.0)
    with pytest.raises(TypeError, match=r"clip_grad_value_ got 3"):
        amp.clip_grad_value_([3], 1.0)
    with pytest.raises(ValueError, match=r"max_norm=-1"):
        amp.clip_grad_norm_(model, -1)
    with pytest.raises(ValueError, match=r"clip_value=nan"):
        amp.clip_grad_value_(model, float("nan"))
    with pytest.raises(ValueError, match=r"norm_type"):
        amp.clip_grad_norm_(model, 1.0, 0)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_an_infinity_that_was_clipped_by_value_still_counts_when_more_is_accumulated(dtype: Any) -> None:
    amp.init("O1", dtype=dtype)
    model = amp.prepare_model(nn.Linear(2, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, steps in (([1.0, 1.0], True), ([INF, 1.0], False), ([1.0, 1.0], True)):
        before = model.weight.detach().clone()
        for x in (torch.tensor([inputs]), torch.ones(1, 2)):
            amp.scaler.scale(model(x).sum()).backward()
            amp.clip_grad_value_(model.parameters(), 1.0)
        amp.scaler.step(optimizer)
        assert amp.scaler.stepped == steps
        assert torch.equal(model.weight, before) != steps
        amp.scaler.update()
        optimizer.zero_grad()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_the_first_clipping_after_a_restart_is_like_any_other(level: Any, dtype: Any) -> None:
    weights = []
    for known in (False, True):
        amp.shutdown()
        amp.init(level, dtype=dtype, init_scale=2.0**8)
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        if known:
            amp.scaler.step(optimizer)  # without gradients it changes nothing
        loss = model(torch.linspace(-1, 1, 12).reshape(4, 3)).square().sum()
        amp.scaler.scale(loss).backward()
        amp.clip_grad_norm_(model.parameters(), 0.37)
        amp.scaler.step(optimizer)
        weights.append(torch.cat([weight.flatten() for weight in model.state_dict().values()]))
    assert torch.equal(*weights)


@pytest.mark.parametrize("steps", [0, 1])
def test_rows_that_occur_twice_in_a_sparse_gradient_count_as_their_sum(steps: int) -> None:
    amp.init("O0")
    try:
        table = nn.Embedding(3, 2, sparse=True)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.0)
        for _ in range(steps):
            table(torch.tensor([1])).sum().backward()
            amp.scaler.step(optimizer)
        optimizer.zero_grad()
        table(torch.tensor([1, 1])).sum().backward()
        assert amp.clip_grad_norm_(table.parameters(), 1.0).item() == pytest.approx(8**0.5)
        assert table.weight.grad.to_dense().norm().item() == pytest.approx(1.0, abs=1e-4)
        table(torch.tensor([1, 1])).sum().backward()
        amp.clip_grad_value_(table.parameters(), 0.5)
        assert table.weight.grad.to_dense().max().item() == 0.5
    finally:
        amp.shutdown()
