"""Damage that no exception told before, in one process."""

from __future__ import annotations

import warnings
from typing import Any

import amp_runtime as amp
import pytest
import torch
from torch import nn
from torch.optim import optimizer as optim


def hooks() -> int:
    return len(optim._global_optimizer_pre_hooks)


def start(level: Any = "O1", dtype: Any = "fp16", kind: Any = torch.optim.Adam) -> tuple[Any, torch.optim.Optimizer]:
    amp.init(level, dtype=dtype)
    model = amp.prepare_model(nn.Linear(2, 2))
    return model, kind(model.parameters(), lr=0.1)


def loss_of(model: Any) -> torch.Tensor:
    with amp.autocast():
        return model(torch.ones(1, 2)).float().square().sum()


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, amp.optim.AdamW])
def test_a_step_on_scaled_gradients_is_an_error_that_names_optimizer_and_line(level: Any, kind: Any) -> None:
    model, optimizer = start(level, kind=kind)
    amp.scaler.scale(loss_of(model)).backward()
    before = model.weight.clone()
    problem = (
        r"test_runtime_noticing\.py:\d+, in test_a_step\w+: "
        rf"{kind.__name__}\.step\(\) was called on the gradients of a scaled loss, which are 65536 times too large"
    )
    with pytest.raises(RuntimeError, match=problem):
        optimizer.step()
    assert torch.equal(model.weight, before)
    amp.scaler.step(optimizer)
    amp.scaler.update()
    amp.scaler.scale(loss_of(model)).backward()
    with pytest.raises(RuntimeError, match="scaled loss"):
        optimizer.step()


def test_steps_on_true_gradients_are_none() -> None:
    model, optimizer = start()
    other = nn.Linear(2, 1)
    of_other = torch.optim.SGD(other.parameters(), lr=0.1)
    for clears in (True, False):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=clears)
            of_other.zero_grad(set_to_none=clears)
            amp.scaler.scale(loss_of(model) + other(torch.ones(1, 2)).sum()).backward()
            of_other.zero_grad(set_to_none=clears)
            other(torch.ones(1, 2)).sum().backward()  # a loss of its own, which is not scaled
            of_other.step()
            amp.scaler.step(optimizer)
            amp.scaler.update()
    optimizer.zero_grad()
    amp.scaler.scale(loss_of(model)).backward()
    amp.scaler.unscale_(optimizer)
    optimizer.step()
    optimizer.zero_grad()
    amp.scaler.scale(loss_of(model)).backward()
    scaled = [parameter.grad for parameter in model.parameters()]  # kept, and so are their notes
    optimizer.zero_grad()
    loss_of(model).backward()
    assert len(scaled) == 2
    torch.autograd.grad(amp.scaler.scale(loss_of(model)), list(model.parameters()))
    optimizer.step()


def test_what_the_scaler_has_made_true_for_another_optimizer_may_be_stepped_on() -> None:
    amp.init("O1", dtype="fp16")
    model = amp.prepare_model(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in model)
    for _ in range(3):
        model.zero_grad()
        amp.scaler.scale(loss_of(model)).backward()
        amp.scaler.step(first)
        second.step()  # its gradients were made true with those of the first
        amp.scaler.update()
    model.zero_grad()
    amp.scaler.scale(loss_of(model)).backward()
    with pytest.raises(RuntimeError, match="scaled loss"):
        second.step()


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_gradient_that_is_written_while_scaled_is_told_once(level: Any) -> None:
    model, optimizer = start(level)

    def step(write: Any, unscales: bool = False) -> list[str]:
        optimizer.zero_grad()
        for _ in range(2):
            amp.scaler.scale(loss_of(model)).backward()
        if unscales:
            amp.scaler.unscale_(optimizer)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            write()
            amp.scaler.step(optimizer)
        amp.scaler.update()
        return [str(warning.message) for warning in caught]

    def noise() -> None:
        model.bias.grad.add_(0.1)

    assert step(lambda: None) == step(lambda: amp.clip_grad_norm_(model.parameters(), 1.0)) == []
    assert step(noise, unscales=True) == []
    (told,) = step(noise)
    assert "test_runtime_noticing.py:" in told and "the gradient of Linear.bias was written while" in told
    assert step(noise) == []


def test_other_losses_that_were_not_looked_at_write_gradients_too() -> None:
    model, optimizer = start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(8):
            optimizer.zero_grad()
            both = amp.scaler.scale([loss_of(model), loss_of(model), loss_of(model)])
            for loss in both:
                loss.backward(retain_graph=True)
            for loss in reversed(both):
                loss.backward()
            amp.scaler.step(optimizer)
            amp.scaler.update()


def test_where_nothing_is_scaled_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = hooks()
    for level, dtype in (("O0", "auto"), ("O1", "bf16"), ("O2", "bf16")):
        model, optimizer = start(level, dtype)
        amp.scaler.scale(loss_of(model)).backward()
        assert hooks() == before
        optimizer.step()
        amp.shutdown()
    monkeypatch.setenv("AMP_CHECK", "off")
    model, optimizer = start()
    amp.scaler.scale(loss_of(model)).backward()
    optimizer.step()
    assert hooks() == before
    monkeypatch.delenv("AMP_CHECK")
    model, optimizer = start()
    amp.scaler.scale(loss_of(model)).backward()
    assert hooks() == before + 1
    amp.shutdown()
    assert hooks() == before and amp.scaler.on_scaled is None


def test_losses_are_looked_at_more_and_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    for check, expected in (("on", [*range(1, 11), 100]), ("every", list(range(1, 121)))):
        monkeypatch.setenv("AMP_CHECK", check)
        model, _ = start()
        seen.clear()
        for number in range(1, 121):
            scaled = amp.scaler.scale(model.weight.sum())
            if scaled._backward_hooks:
                seen.append(number)
        assert seen == expected
        amp.shutdown()


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_CHECK", "always")
    with pytest.raises(ValueError, match=r"AMP_CHECK='always' in the environment; allowed: 'off', 'on', 'every'"):
        amp.init("O1")
