"""Loss curves of mixed precision against float32, on four kinds of model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import amp_runtime as amp
import pytest
import torch
import torch.nn.functional as F
from torch import nn

Curve = list[tuple[float, ...]]


def advance(optimizer: Any, loss: torch.Tensor, parameters: Any, clip: float = 1.0) -> None:
    amp.scaler.scale(loss).backward()
    amp.scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(parameters, clip)
    amp.scaler.step(optimizer)
    amp.scaler.update()


def classify(model: nn.Module, data: torch.Tensor, labels: torch.Tensor, steps: int = 30) -> Curve:
    model = amp.prepare_model(model)
    optimizer = amp.optim.AdamW(model.parameters(), lr=5e-3)
    curve = []
    for index in range(steps):
        part = slice(index % 3 * 16, index % 3 * 16 + 16)
        optimizer.zero_grad()
        with amp.autocast():
            loss = F.cross_entropy(model(data[part]), labels[part])
        advance(optimizer, loss, model.parameters())
        curve.append((loss.item(),))
    return curve


def convnet() -> Curve:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip
    labels = torch.randint(0, 3, (48,))
    data = torch.randn(48, 1, 8, 8) + labels[:, None, None, None]
    return classify(model, data, labels)


class Sequence(nn.Module):
    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.embed, self.core, self.head = nn.Embedding(12, 16), core, nn.Linear(16, 12)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out = self.core(self.embed(ids))
        return self.head((out[0] if isinstance(out, tuple) else out)[:, -1])


def transformer() -> Curve:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = Sequence(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    ids = torch.randint(0, 12, (48, 6))
    return classify(model, ids, ids[:, 0])


def lstm() -> Curve:
    torch.manual_seed(0)
    ids = torch.randint(0, 12, (48, 6))
    return classify(Sequence(nn.LSTM(16, 16, batch_first=True)), ids, ids[:, -1])


def gan() -> Curve:
    torch.manual_seed(0)
    generator = amp.prepare_model(nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2)))
    critic = amp.prepare_model(nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)))
    for_generator = amp.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.9))
    for_critic = amp.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
    noise, real, curve = torch.randn(40, 32, 4), torch.randn(40, 32, 2) * 0.3 + 1.0, []
    for z, x in zip(noise, real, strict=True):
        for_critic.zero_grad()
        with amp.autocast():
            fake = generator(z)
            on_real, on_fake = critic(x), critic(fake.detach())
            critic_loss = F.softplus(-on_real).mean() + F.softplus(on_fake).mean()
        advance(for_critic, critic_loss, critic.parameters())
        for_generator.zero_grad()
        with amp.autocast():
            generator_loss = F.softplus(-critic(fake)).mean()
        advance(for_generator, generator_loss, generator.parameters())
        curve.append((critic_loss.item(), generator_loss.item()))
    return curve


@pytest.fixture(scope="module")
def in_float32() -> dict[Callable[[], Curve], Curve]:
    amp.shutdown()
    return {run: run() for run in (convnet, transformer, lstm, gan)}


@pytest.mark.parametrize("run", [convnet, transformer, lstm, gan])
@pytest.mark.parametrize(("level", "dtype"), [("O1", "bf16"), ("O2", "bf16"), ("O1", "fp16"), ("O2", "fp16")])
def test_the_loss_follows_that_of_float32(
    run: Callable[[], Curve], level: Any, dtype: Any, in_float32: dict[Callable[[], Curve], Curve]
) -> None:
    if run is lstm and dtype == "fp16":
        pytest.skip("torch has no float16 LSTM on the CPU")
    amp.init(level, dtype=dtype)
    curve, expected = torch.tensor(run()), torch.tensor(in_float32[run])
    if run is not gan:
        assert expected[-3:].mean() < expected[:3].mean() * 0.8, "the task is learnt"
    difference = (curve - expected).abs()
    assert difference.max() < 0.03 * expected.abs().max(), difference.max()
    assert difference.mean() < 0.01 * expected.abs().mean(), difference.mean()


def test_masters_are_what_keeps_half_weights_learning() -> None:
    def last(level: Any) -> float:
        amp.init(level, dtype="bf16")
        torch.manual_seed(0)
        model = amp.prepare_model(nn.Linear(8, 1))
        optimizer = amp.optim.SGD(model.parameters(), lr=2e-4)
        x = torch.randn(64, 8)
        y = x @ torch.linspace(-1, 1, 8)[:, None]
        for _ in range(300):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            amp.scaler.scale(loss).backward()
            amp.scaler.step(optimizer)
        return loss.item()

    plain, masters, half = last("O0"), last("O2"), last("O3")
    assert masters == pytest.approx(plain, rel=0.03) and half > plain * 1.1
