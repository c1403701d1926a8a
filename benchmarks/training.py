"""Small models, and the same training step written with ``amp_runtime`` and by hand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import amp_runtime as amp
import torch
import torch.nn.functional as F
from timing import Contender
from torch import nn

CLASSES = 10

OptimizerMaker = Callable[[Any], torch.optim.Optimizer]


@dataclass(frozen=True)
class Task:
    """A model and one batch; the model gives logits of shape ``(samples, CLASSES)``."""

    name: str
    build: Callable[[], nn.Module]
    inputs: torch.Tensor
    targets: torch.Tensor


def _task(name: str, build: Callable[[], nn.Module], device: str, *shape: int) -> Task:
    torch.manual_seed(0)
    inputs = torch.randn(*shape, device=device)
    targets = torch.randint(CLASSES, (shape[0],), device=device)
    return Task(name, lambda: build().to(device), inputs, targets)


def mlp(device: str, width: int = 1024, depth: int = 3, batch: int = 64) -> Task:
    def build() -> nn.Module:
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*layers, nn.Linear(width, CLASSES))

    return _task(f"MLP, {depth} x {width}, batch {batch}", build, device, batch, width)


def conv(device: str, channels: int = 32, size: int = 32, batch: int = 8) -> Task:
    def block(inward: int) -> list[nn.Module]:
        return [nn.Conv2d(inward, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]

    def build() -> nn.Module:
        blocks = [*block(3), *block(channels), *block(channels), *block(channels)]
        return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))

    return _task(f"conv+BN, 4 x {channels} of {size}x{size}, batch {batch}", build, device, batch, 3, size, size)


class _Transformer(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True) for _ in range(depth)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.head(self.layers(inputs).mean(1))


def transformer(device: str, width: int = 256, depth: int = 2, length: int = 64, batch: int = 4) -> Task:
    name = f"transformer, {depth} x {width}, {batch} x {length} tokens"
    return _task(name, lambda: _Transformer(width, depth), device, batch, length, width)


class _Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.head(self.lstm(inputs)[0][:, -1])


def lstm(device: str, width: int = 256, length: int = 32, batch: int = 16) -> Task:
    return _task(f"LSTM, {width}, {batch} x {length}", lambda: _Recurrent(width), device, batch, length, width)


def chain(device: str, tensors: int) -> Task:
    """A model whose parameters are many and tiny: half as many linear layers, which begin as the identity."""

    def build() -> nn.Module:
        layers = [nn.Linear(CLASSES, CLASSES) for _ in range(tensors // 2)]
        for layer in layers:
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(*layers)

    return _task(f"{tensors} tensors", build, device, 4, CLASSES)


def turn_off() -> None:
    """Leaves no trace of ``amp_runtime`` in a turn of hand-written code."""
    amp.init("O0")


def fused_adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-5, fused=True)


def by_hand(
    name: str,
    task: Task,
    make_optimizer: OptimizerMaker = fused_adamw,
    half: torch.dtype | None = None,
    scaled: bool = False,
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> Contender:
    """A training step in plain torch.

    Args:
        name: what it is.
        task: what to train.
        make_optimizer: gets the parameters.
        half: the type of autocast; ``None`` trains in float32.
        scaled: with a ``GradScaler``.
        wrap: makes a distributed model.
    """
    turn_off()
    device = task.inputs.device.type
    model = wrap(task.build())
    optimizer = make_optimizer(model.parameters())
    scaler: Any = torch.amp.GradScaler(device, enabled=scaled)
    region = nullcontext() if half is None else torch.autocast(device, half)

    def step() -> None:
        optimizer.zero_grad()
        with region:
            loss = F.cross_entropy(model(task.inputs), task.targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return Contender(name, step, turn_off)


def ours(
    name: str,
    task: Task,
    level: Any,
    make_optimizer: OptimizerMaker = fused_adamw,
    keep_gradients: bool = False,
    clipping: bool = False,
    region: Callable[[], Any] = amp.autocast,
    prepare: dict[str, Any] | None = None,
    **settings: Any,
) -> Contender:
    """The same step with ``amp_runtime``.

    Args:
        name: what it is.
        task: what to train.
        level: the opt level.
        make_optimizer: gets the parameters.
        keep_gradients: fill gradients with zeros instead of dropping them.
        clipping: clip their norm.
        region: makes what the forward pass runs in.
        prepare: arguments of ``amp.prepare_model``.
        settings: further arguments of ``amp.init``.
    """

    def enter() -> None:
        amp.init(level, **settings)

    enter()
    model = amp.prepare_model(task.build(), **(prepare or {}))
    optimizer = make_optimizer(model.parameters())

    def step() -> None:
        optimizer.zero_grad(set_to_none=not keep_gradients)
        with region():
            loss = F.cross_entropy(model(task.inputs), task.targets)
        amp.scaler.scale(loss).backward()
        if clipping:
            amp.clip_grad_norm_(optimizer, 1.0)
        amp.scaler.step(optimizer)
        amp.scaler.update()

    return Contender(name, step, enter)
