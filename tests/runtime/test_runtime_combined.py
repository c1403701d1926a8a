"""Gradients in flat buffers, and advice about parameter groups."""

from __future__ import annotations

import logging
from typing import Any

import amp_runtime as amp
import pytest
import torch
from amp_runtime._scaling.combined import CombinedGradients
from torch import nn

INF = float("inf")


class Mixed(nn.Module):
    """Dense, sparse, half, unused and channels-last parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4, sparse=True)
        self.linear = nn.Linear(4, 4)
        self.conv = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.wide = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(self.table(x)).mean(1) * self.wide
        return y.sum() + self.conv(torch.ones(1, 2, 3, 3)).sum()


def train(combined: bool, set_to_none: bool, dtype: Any = "fp16") -> list[float]:
    amp.init("O1", dtype=dtype, combine_grad=combined)
    torch.manual_seed(0)
    model = amp.prepare_model(Mixed())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(6):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = model(torch.tensor([[1, 2, number % 5]])) ** 2 * (INF if number == 2 else 1.0)
        amp.scaler.scale(loss).backward()
        if number % 2:
            amp.clip_grad_norm_([p for p in model.parameters() if p is not model.table.weight], 0.5)
        amp.scaler.step(optimizer)
        amp.scaler.update()
        assert amp.scaler.stepped is (number != 2)
    assert model.unused.weight.grad is None
    return [value for p in model.parameters() for value in p.detach().flatten().tolist()]


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_combined_gradients_train_alike(set_to_none: bool, dtype: Any) -> None:
    assert train(True, set_to_none, dtype) == pytest.approx(train(False, set_to_none, dtype), rel=1e-6)


def test_gradients_stay_in_their_buffer_and_keep_their_layout() -> None:
    model = Mixed()
    model(torch.tensor([[1, 2]])).backward()
    parameters = list(model.parameters())
    plain = [None if p.grad is None else p.grad.clone() for p in parameters]
    combined = CombinedGradients(parameters)
    combined.gather(parameters)
    buffers = combined.whole(parameters)
    assert sorted(b.numel() for b in buffers if not b.is_sparse) == sorted(
        [4, sum(p.numel() for m in (model.linear, model.conv) for p in m.parameters())]
    )
    for parameter, before in zip(parameters, plain, strict=True):
        if before is None:
            assert parameter.grad is None
        else:
            assert torch.equal(parameter.grad.to_dense(), before.to_dense())
    assert model.conv.weight.grad.is_contiguous(memory_format=torch.channels_last)
    gradient = model.linear.weight.grad
    for p in parameters:
        if p.grad is not None and not p.grad.is_sparse:
            p.grad.zero_()
    model(torch.tensor([[1, 2]])).backward()
    combined.gather(parameters)
    assert model.linear.weight.grad is gradient and gradient.untyped_storage().data_ptr() in {
        b.untyped_storage().data_ptr() for b in buffers if not b.is_sparse
    }


def test_an_old_infinity_in_the_buffer_is_forgotten_when_its_parameter_is_not_used() -> None:
    amp.init("O1", dtype="fp16", combine_grad=True)
    first, second = (nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = torch.optim.SGD([first, second], lr=0.1)
    for loss, steps in ((first.sum() * INF + second.sum(), False), (second.sum(), True)):
        optimizer.zero_grad()
        amp.scaler.scale(loss).backward()
        amp.scaler.step(optimizer)
        assert amp.scaler.stepped is steps
        amp.scaler.update()
    assert first.grad is None


def test_a_model_that_changes_its_type_gets_new_buffers() -> None:
    amp.init("O1", dtype="fp16", combine_grad=True)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        optimizer.zero_grad()
        amp.scaler.scale(model(torch.ones(1, 3, dtype=dtype)).sum()).backward()
        amp.scaler.step(optimizer)
        assert model.weight.grad.dtype is dtype and model.weight.grad.tolist() == [[1.0] * 3]


def test_groups_with_equal_options_are_pointed_out_once(caplog: pytest.LogCaptureFixture) -> None:
    def run(verbose: bool, options: list[dict[str, Any]]) -> str:
        amp.shutdown()
        caplog.clear()
        amp.init("O1", dtype="bf16", verbose=verbose)
        parameters = [nn.Parameter(torch.ones(1)) for _ in options]
        optimizer = torch.optim.SGD([{"params": [p], **o} for p, o in zip(parameters, options, strict=True)], lr=0.1)
        with caplog.at_level(logging.INFO, logger="amp_runtime"):
            for _ in range(2):
                amp.scaler.step(optimizer)
        return caplog.text

    layers = [{"weight_decay": 0.1}, {}, {"weight_decay": 0.1}, {}, {"lr": 0.2}]
    text = run(True, layers)
    assert text.count("parameter groups") == 1
    assert "SGD has 5 parameter groups, of which 2 (0, 2) and 2 (1, 3) have equal options" in text
    assert run(False, layers) == ""
    assert run(True, layers[1:3]) == ""
