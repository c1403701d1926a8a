"""``AMP_LOSS_SCALE`` scales everywhere, so that a script's treatment of scaled gradients can be checked in float32."""

from __future__ import annotations

from typing import Any

import amp_runtime as amp
import pytest
import torch
from amp_runtime.apex import amp as apex_amp
from amp_runtime.apex.fp16_utils import FP16_Optimizer
from torch import nn

SCALE = "1024"


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(4)
    return [(torch.randn(5, 6), torch.randn(5, 1)) for _ in range(8)]


def train(unscale: bool = True) -> tuple[list[float], list[float], list[torch.Tensor]]:
    """Losses, norms before clipping, and the last weights."""
    amp.init("O0")
    model = amp.prepare_model(net())
    optimizer = amp.optim.Adam(model.parameters(), lr=0.05)
    losses, norms = [], []
    for x, y in batches():
        optimizer.zero_grad()
        with amp.autocast():
            loss = nn.functional.mse_loss(model(x), y)
        amp.scaler.scale(loss).backward()
        if unscale:
            amp.scaler.unscale_(optimizer)
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
        amp.scaler.step(optimizer)
        amp.scaler.update()
        losses.append(loss.item())
    return losses, norms, [parameter.detach().clone() for parameter in model.parameters()]


def test_at_O0_a_power_of_two_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, norms, weights = train()
    amp.shutdown()
    monkeypatch.setenv("AMP_LOSS_SCALE", SCALE)
    scaled_losses, scaled_norms, scaled_weights = train()
    assert amp.scaler.get_scale() == 1024.0
    assert (scaled_losses, scaled_norms) == (losses, norms)
    assert all(map(torch.equal, scaled_weights, weights))


def test_clipping_what_is_still_scaled_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, *_ = train(unscale=False)
    amp.shutdown()
    monkeypatch.setenv("AMP_LOSS_SCALE", SCALE)
    assert train(unscale=False)[0] != losses


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_every_level_and_type_has_the_scale(level: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_LOSS_SCALE", SCALE)
    amp.init(level, dtype=dtype, loss_scale=8.0)
    loss = torch.tensor(0.25)
    assert amp.scaler.scale(loss).item() == 256.0
    assert amp.scaler.get_scale() == 1024.0


def train_with_apex(enabled: bool = True) -> list[float]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = apex_amp.initialize(model, optimizer, enabled=enabled, opt_level="O0", verbosity=0)
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        with apex_amp.scale_loss(loss, optimizer) as scaled:
            assert not enabled or scaled.item() == pytest.approx(1024 * loss.item())
            scaled.backward()
        nn.utils.clip_grad_norm_(apex_amp.master_params(optimizer), 0.1)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_interface_of_apex_has_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train_with_apex(enabled=False)
    monkeypatch.setenv("AMP_LOSS_SCALE", SCALE)
    assert train_with_apex() == expected


def test_the_optimizers_of_fp16_utils_have_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_LOSS_SCALE", SCALE)
    for options in ({"static_loss_scale": 8.0}, {"dynamic_loss_scale": True}):
        model = net()
        optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=0.05), verbose=False, **options)
        for x, y in batches():
            optimizer.zero_grad()
            optimizer.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
            assert optimizer.loss_scale == 1024.0


@pytest.mark.parametrize("value", ["0", "-2", "much", "inf", "nan", "True"])
def test_a_wrong_value_is_an_error_that_repeats_it(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_LOSS_SCALE", value)
    with pytest.raises(ValueError, match=rf"AMP_LOSS_SCALE='{value}'.*a positive number"):
        amp.init("O0")
    assert not amp.scaler.is_enabled()


def test_an_empty_value_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_LOSS_SCALE", " ")
    amp.init("O0")
    assert not amp.scaler.is_enabled()
