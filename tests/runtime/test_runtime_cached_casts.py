"""A pass without gradients before one with gradients, in one region."""

from __future__ import annotations

from typing import Any

import amp_runtime as amp
import pytest
import torch
from amp_runtime._precision import cached_casts
from torch import nn


def gradients(model: Any, x: torch.Tensor) -> list[torch.Tensor | None]:
    with amp.autocast():
        with torch.no_grad():
            target = model(x).argmax(1)
        loss = nn.functional.cross_entropy(model(x), target)
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def test_all_weights_get_gradients(model: nn.Module) -> None:
    amp.init("O1", dtype="bf16")
    assert all(gradient is not None for gradient in gradients(amp.prepare_model(model), torch.randn(5, 4)))


def test_where_torch_keeps_such_casts_they_are_dropped_once(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[int] = []
    monkeypatch.setattr(cached_casts, "are_kept", lambda: True)
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: dropped.append(1))  # a region ends with it, too
    amp.init("O1", dtype="bf16")
    model = amp.prepare_model(model)
    dropped.clear()  # the first model of a process tries what the processor has, in regions of its own
    for _ in range(2):
        with amp.autocast():
            model(torch.randn(5, 4))
    assert len(dropped) == 2
    gradients(model, torch.randn(5, 4))
    assert len(dropped) == 4


def test_where_it_does_not_nothing_is_watched(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_casts, "are_kept", lambda: False)
    amp.init("O1", dtype="bf16")
    assert not amp.prepare_model(model)._forward_pre_hooks


def test_this_torch_is_asked_by_what_it_does() -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            weight.mm(weight)
        assert weight.mm(weight).requires_grad != cached_casts.are_kept()
