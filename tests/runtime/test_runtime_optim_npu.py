"""Ascend's optimizers against plain versions and against torch."""

from __future__ import annotations

import copy
import math
from typing import Any

import amp_runtime as amp
import plain_optim as plain
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from properties import examples
from test_runtime_optim_layerwise import parameters_of, rounds, start, train
from torch import nn

quick = settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
rates = st.sampled_from([1e-3, 0.05])
decays = st.sampled_from([0.0, 0.01, 0.3])
betas = st.sampled_from([(0.9, 0.999), (0.95, 0.98), (0.0, 0.5)])
yes_no = st.booleans()
OURS = ["NpuFusedAdamP", "NpuFusedBertAdam", "NpuFusedLamb", "NpuFusedRMSpropTF"]


def agree(optimizer: Any, parameters: list[nn.Parameter], expected: list[torch.Tensor]) -> None:
    for one, other in zip(train(optimizer, parameters, rounds()), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=3e-5, atol=3e-6)


@quick
@given(
    lr=rates,
    betas=betas,
    wd=decays,
    delta=st.sampled_from([0.0, 0.1, 2.0]),
    wd_ratio=st.sampled_from([0.1, 1.0]),
    nesterov=yes_no,
)
def test_adamp(lr: float, betas: Any, wd: float, delta: float, wd_ratio: float, nesterov: bool) -> None:
    parameters = parameters_of(start())
    optimizer = amp.optim.NpuFusedAdamP(parameters, lr, betas, 1e-8, wd, delta, wd_ratio, nesterov)
    expected = plain.run(plain.adamp(lr, betas, 1e-8, wd, delta, wd_ratio, nesterov), start(), rounds())
    agree(optimizer, parameters, expected)


def test_adamp_projects_scale_invariant_tensors() -> None:
    """A gradient across the weights: the step has no part along them, except for what Adam's division adds back."""
    parameter = nn.Parameter(torch.tensor([[3.0, 4.0]]))
    parameter.grad = torch.tensor([[4.0, -3.0]])
    amp.optim.NpuFusedAdamP([parameter], lr=1e-3).step()
    moved = parameter.detach() - torch.tensor([[3.0, 4.0]])
    assert abs(float((moved * torch.tensor([[3.0, 4.0]])).sum())) < 1e-6 < moved.norm()


@quick
@given(lr=rates, betas=betas, wd=decays, adam=yes_no, whole=yes_no, large=yes_no)
def test_lamb(lr: float, betas: Any, wd: float, adam: bool, whole: bool, large: bool) -> None:
    values = [value * (50 if large else 1) for value in start()]  # the norm counts for at most 10
    reference = plain.lamb(lr, betas, 1e-6, wd, bias_correction=False, adam_w_mode=True, grad_averaging=True,
                           always_adapt=True, largest=10.0)  # fmt: skip
    if adam:
        reference = plain.adam(lr, betas, 1e-6, wd, True, False)
    parameters = parameters_of(values)
    optimizer = amp.optim.NpuFusedLamb(parameters, lr, betas, 1e-6, wd, adam, whole)
    agree(optimizer, parameters, plain.run(reference, values, rounds(), 1.0 if whole else None))


@quick
@given(
    lr=rates,
    alpha=st.sampled_from([0.9, 0.5]),
    wd=decays,
    momentum=st.sampled_from([0.0, 0.9]),
    centered=yes_no,
    decoupled_decay=yes_no,
    lr_in_momentum=yes_no,
)
def test_rmsprop_tf(lr: float, alpha: float, wd: float, momentum: float, centered: bool, **flags: bool) -> None:
    parameters = parameters_of(start())
    optimizer = amp.optim.NpuFusedRMSpropTF(parameters, lr, alpha, 1e-2, wd, momentum, centered, **flags)
    reference = plain.rmsprop_tf(
        lr, alpha, 1e-2, wd, momentum, centered, flags["decoupled_decay"], flags["lr_in_momentum"]
    )
    agree(optimizer, parameters, plain.run(reference, start(), rounds()))


def warmed(schedule: str, progress: float, warmup: float) -> float:
    if progress < warmup:
        return progress / warmup
    return {
        "warmup_constant": lambda: 1.0,
        "warmup_cosine": lambda: 0.5 * (1 + math.cos(math.pi * progress)),
        "warmup_linear": lambda: max((progress - 1) / (warmup - 1), 0.0),
        "warmup_poly": lambda: (1 - progress) ** 0.5,
    }[schedule]()


@quick
@given(
    lr=rates,
    warmup=st.sampled_from([-1, 0.3, 0.6]),
    wd=decays,
    clip=st.sampled_from([-1, 1.0]),
    schedule=st.sampled_from(["warmup_constant", "warmup_cosine", "warmup_linear", "warmup_poly"]),
)
def test_bert_adam(lr: float, warmup: float, wd: float, clip: float, schedule: str) -> None:
    def step(state: dict[str, Any], p: torch.Tensor, g: torch.Tensor, number: int) -> torch.Tensor:
        rate = lr * warmed(schedule, (number - 1) / 5, warmup)
        return plain.adam(rate, (0.9, 0.99), 1e-6, wd, True, False)(state, p, g, number)

    parameters = parameters_of(start())
    optimizer = amp.optim.NpuFusedBertAdam(parameters, lr, warmup, 5, schedule, weight_decay=wd, max_grad_norm=clip)
    agree(optimizer, parameters, plain.run(step, start(), rounds(), clip if clip > 0 else None))
    assert optimizer.get_lr()[0] == pytest.approx(lr * warmed(schedule, 3 / 5, warmup))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
        ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
        ("AdamW", {}),
        ("Adadelta", {"weight_decay": 0.1}),
        ("RMSprop", {"weight_decay": 0.1, "momentum": 0.9, "centered": True}),
    ],
)
@pytest.mark.parametrize("level", ["O0", "O1"])
def test_those_that_torch_has_are_torchs(name: str, options: dict[str, Any], level: str) -> None:
    amp.init(level, dtype="bf16")
    ours, theirs = parameters_of(start()), parameters_of(start())
    optimizer = getattr(amp.optim, f"NpuFused{name}")(ours, **options)
    reference = getattr(torch.optim, name)(theirs, **options)
    for a, b in zip(train(optimizer, ours, rounds()), train(reference, theirs, rounds()), strict=True):
        torch.testing.assert_close(a, b)
    reference.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("name", OURS)
def test_resume_is_exact_and_half_state_float32(name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        ours, theirs = parameters_of(start(), dtype), parameters_of(start(), dtype)
        expected = train(getattr(amp.optim, name)(ours, lr=0.1), ours, rounds(6))
        first = getattr(amp.optim, name)(theirs, lr=0.1)
        train(first, theirs, rounds(6)[:3])
        resumed = getattr(amp.optim, name)(theirs, lr=0.1)
        resumed.load_state_dict(copy.deepcopy(first.state_dict()))
        for a, b in zip(train(resumed, theirs, rounds(6)[3:]), expected, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: amp.optim.NpuFusedAdamP(p, delta=-1), "NpuFusedAdamP got delta=-1; allowed"),
        (lambda p: amp.optim.NpuFusedBertAdam(p, 1, warmup=1.5), "NpuFusedBertAdam got warmup=1.5; allowed"),
        (lambda p: amp.optim.NpuFusedBertAdam(p, 1, schedule="x"), "schedule='x'; allowed: 'warmup_constant'"),
        (lambda p: amp.optim.NpuFusedLamb(p, eps=-1), "NpuFusedLamb got eps=-1; allowed"),
        (lambda p: amp.optim.NpuFusedRMSpropTF(p, alpha=-1), "NpuFusedRMSpropTF got alpha=-1; allowed"),
    ],
)
def test_wrong_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make([nn.Parameter(torch.ones(2))])
