"""Several losses with a scale each."""

from __future__ import annotations

from typing import Any

import amp_runtime as amp
import pytest
import torch
from torch import nn

INF = float("inf")


def scales() -> list[float]:
    return [amp.scaler.get_scale(k) for k in range(2)]


def step(*optimizers: torch.optim.Optimizer) -> None:
    for optimizer in optimizers:
        amp.scaler.step(optimizer)
    amp.scaler.update()


def shared(**settings: Any) -> tuple[nn.Linear, torch.optim.Optimizer]:
    amp.init("O1", dtype="fp16", num_losses=2, **settings)
    torch.manual_seed(0)
    model = amp.prepare_model(nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def backward(model: nn.Module, loss_id: int, factor: float = 1.0) -> None:
    amp.scaler.scale(model(torch.ones(1, 3)).sum() * factor, loss_id=loss_id).backward()


def test_losses_that_share_an_optimizer_have_scales_of_their_own_and_right_gradients() -> None:
    model, optimizer = shared()
    backward(model, 0)
    backward(model, 1, INF)
    step(optimizer)
    assert not amp.scaler.stepped and scales() == [65536.0, 32768.0], "only the loss that overflowed"
    for order in ((0, 1), (1, 0), (0, 1, 0, 1)):
        optimizer.zero_grad()
        for loss_id in order:
            backward(model, loss_id, 1.0 + loss_id)
        amp.scaler.unscale_(optimizer)
        assert model.weight.grad.tolist() == [[3.0 * len(order) / 2] * 3]
        step(optimizer)
        assert amp.scaler.stepped


def test_the_first_of_two_losses_is_charged_with_its_overflow() -> None:
    model, optimizer = shared()
    step(optimizer)  # from here on the scaler knows which gradients belong together
    backward(model, 0, INF)
    backward(model, 1)
    step(optimizer)
    assert not amp.scaler.stepped and scales() == [32768.0, 65536.0]


def test_each_loss_grows_by_its_own_good_steps() -> None:
    model, optimizer = shared(growth_interval=2)
    for number in range(4):
        optimizer.zero_grad()
        backward(model, 0)
        if number % 2:
            backward(model, 1)
        step(optimizer)
    assert scales() == [65536.0 * 4, 65536.0 * 2]


def test_gradients_of_optimizers_not_seen_yet_are_brought_to_the_next_loss_s_unit() -> None:
    model, optimizer = shared()
    amp.scaler.load_state_dict({"loss_scaler0": {"loss_scale": 1024.0}, "loss_scaler1": {"loss_scale": 16.0}})
    backward(model, 0)
    backward(model, 1)
    amp.scaler.unscale_(optimizer)
    assert model.weight.grad.tolist() == [[2.0] * 3]


def test_a_discarded_gradient_s_overflow_does_not_skip_the_step_that_follows() -> None:
    model, optimizer = shared()
    backward(model, 1)
    step(optimizer)
    optimizer.zero_grad()
    backward(model, 0, INF)
    amp.scaler.scale(torch.zeros((), requires_grad=True), loss_id=1)
    optimizer.zero_grad()
    backward(model, 1)
    step(optimizer)
    assert amp.scaler.stepped


def test_a_gan_s_losses_do_not_lower_each_other_s_scale() -> None:
    amp.init("O1", dtype="fp16", num_losses=2, growth_interval=4)
    torch.manual_seed(0)
    generator, critic = (amp.prepare_model(nn.Linear(2, 2)) for _ in range(2))
    g_optimizer, c_optimizer = (torch.optim.SGD(m.parameters(), lr=0.01) for m in (generator, critic))
    steps = []
    for number in range(8):
        fake = generator(torch.randn(4, 2))
        c_optimizer.zero_grad()
        loss = critic(fake.detach()).mean() * (INF if number in (1, 2) else 1.0)
        amp.scaler.scale(loss, loss_id=0).backward()
        amp.scaler.step(c_optimizer)
        g_optimizer.zero_grad()
        amp.scaler.scale(-critic(fake).mean(), loss_id=1).backward()
        amp.scaler.step(g_optimizer)
        amp.scaler.update()
        steps.append((amp.scaler.stepped_by(c_optimizer), amp.scaler.stepped_by(g_optimizer)))
    assert steps == [(number not in (1, 2), True) for number in range(8)]
    assert scales() == [65536.0 / 4 * 2, 65536.0 * 4]


def test_a_gan_trains_as_in_float32() -> None:
    def train(level: Any) -> list[float]:
        amp.init(level, dtype="fp16", num_losses=2)
        torch.manual_seed(0)
        generator = amp.prepare_model(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)))
        critic = amp.prepare_model(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)))
        g_optimizer = torch.optim.Adam(generator.parameters(), lr=0.01)
        c_optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
        seen = []
        for _ in range(12):
            real, fake = torch.randn(16, 2) + 1, generator(torch.randn(16, 2))
            c_optimizer.zero_grad()
            c_loss = nn.functional.softplus(critic(fake.detach())).mean() + nn.functional.softplus(-critic(real)).mean()
            amp.scaler.scale(c_loss, loss_id=0).backward()
            amp.scaler.step(c_optimizer)
            g_optimizer.zero_grad()
            g_loss = nn.functional.softplus(-critic(fake)).mean()
            amp.scaler.scale(g_loss, loss_id=1).backward()
            amp.scaler.step(g_optimizer)
            amp.scaler.update(8.0 if level == "O1" and len(seen) == 4 else None)
            seen += [c_loss.item(), g_loss.item()]
        return seen

    assert train("O1") == pytest.approx(train("O0"), rel=1e-4)


def test_there_are_only_as_many_losses_as_init_was_told() -> None:
    shared()
    for wrong in (2, -1, "a", 1.0):
        with pytest.raises(ValueError, match=rf"loss_id={wrong!r}; allowed: 0 to 1.*num_losses=2"):
            amp.scaler.scale(torch.ones(()), loss_id=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="loss_id=7"):
        amp.scaler.get_scale(7)
    amp.init("O0", num_losses=2)
    loss = torch.ones(())
    assert amp.scaler.scale(loss, loss_id=1) is loss
