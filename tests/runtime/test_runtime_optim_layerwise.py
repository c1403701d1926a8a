"""LAMB, NovoGrad, LARS and LARC against plain versions of their papers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import amp_runtime as amp
import plain_optim as plain
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from properties import examples
from torch import nn

SHAPES: list[tuple[int, ...]] = [(3, 4), (5,), (), (2, 3, 2, 2), (4, 1)]
quick = settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
rates = st.sampled_from([1e-3, 0.05, 0.3])
decays = st.sampled_from([0.0, 0.01, 0.3])
betas = st.sampled_from([(0.9, 0.999), (0.95, 0.98), (0.0, 0.5)])
yes_no = st.booleans()
Rounds = list[list[torch.Tensor | None]]


def start(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=generator) for shape in SHAPES]
    values[1] = torch.zeros(SHAPES[1])  # no norm to relate an update to
    return values


def rounds(steps: int = 4, seed: int = 1, missing: bool = True) -> Rounds:
    """Gradients of several steps; one is missing now and then, one starts late, one is zero."""
    generator = torch.Generator().manual_seed(seed)
    result: Rounds = []
    for number in range(steps):
        row: list[torch.Tensor | None] = [torch.randn(shape, generator=generator) for shape in SHAPES]
        if missing:
            row[0] = None if number == 1 else row[0]
            row[3] = None if number < 2 else row[3]
        row[4] = torch.zeros(SHAPES[4]) if number == 0 else row[4]
        result.append(row)
    return result


def parameters_of(values: list[torch.Tensor], dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(value.clone().to(dtype)) for value in values]


def train(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], gradients: Rounds) -> list[torch.Tensor]:
    for row in gradients:
        for parameter, gradient in zip(parameters, row, strict=True):
            parameter.grad = None if gradient is None else gradient.clone().to(parameter.dtype)
        optimizer.step()
    return [parameter.detach().double() for parameter in parameters]


def check(optimizer: Any, parameters: list[nn.Parameter], expected: list[torch.Tensor]) -> None:
    actual = train(optimizer, parameters, rounds())
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)


@quick
@given(
    lr=rates,
    betas=betas,
    wd=decays,
    clip=st.sampled_from([None, 0.0, 0.5, 1e6]),
    foreach=st.sampled_from([None, False]),
    bias_correction=yes_no,
    adam_w_mode=yes_no,
    grad_averaging=yes_no,
    always_adapt=yes_no,
)
def test_lamb(lr: float, betas: Any, wd: float, clip: float | None, foreach: bool | None, **options: bool) -> None:
    expected = plain.run(plain.lamb(lr, betas, 1e-6, wd, **options), start(), rounds(), clip)
    parameters = parameters_of(start())
    optimizer = amp.optim.LAMB(parameters, lr, betas, 1e-6, wd, max_grad_norm=clip, foreach=foreach, **options)
    check(optimizer, parameters, expected)


@quick
@given(
    lr=rates,
    betas=betas,
    wd=decays,
    foreach=st.sampled_from([None, False]),
    grad_averaging=yes_no,
    bias_correction=yes_no,
    reg_inside_moment=yes_no,
    init_zero=yes_no,
    norm_type=st.sampled_from([2, 0]),
)
def test_novograd(lr: float, betas: Any, wd: float, foreach: bool | None, **options: Any) -> None:
    # eps is large enough for the step with a zero gradient to mean something
    expected = plain.run(plain.novograd(lr, betas, 1e-3, wd, **options), start(), rounds())
    parameters = parameters_of(start())
    check(amp.optim.NovoGrad(parameters, lr, betas, 1e-3, wd, foreach=foreach, **options), parameters, expected)


@quick
@given(
    lr=rates,
    momentum=st.sampled_from([0.0, 0.9]),
    wd=decays,
    trust=st.sampled_from([1e-3, 0.02, 1.0]),
    nesterov=yes_no,
    adapt=yes_no,
    foreach=st.sampled_from([None, False]),
)
def test_lars(
    lr: float, momentum: float, wd: float, trust: float, nesterov: bool, adapt: bool, foreach: bool | None
) -> None:
    nesterov = nesterov and momentum > 0
    expected = plain.run(plain.lars(lr, momentum, wd, trust, 1e-8, nesterov, adapt), start(), rounds())
    parameters = parameters_of(start())
    optimizer = amp.optim.LARS(parameters, lr, momentum, wd, trust, nesterov=nesterov, adapt=adapt, foreach=foreach)
    check(optimizer, parameters, expected)


@quick
@given(lr=rates, momentum=st.sampled_from([0.0, 0.9]), wd=decays, trust=st.sampled_from([1e-3, 0.02, 1.0]), clip=yes_no)
def test_larc(lr: float, momentum: float, wd: float, trust: float, clip: bool) -> None:
    expected = plain.run(plain.larc_sgd(lr, momentum, wd, trust, 1e-8, clip), start(), rounds())
    parameters = parameters_of(start())
    inner = torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=wd)
    check(amp.optim.LARC(inner, trust_coefficient=trust, clip=clip), parameters, expected)
    assert inner.param_groups[0]["weight_decay"] == wd


MAKERS: dict[str, Any] = {
    "LAMB": lambda p, **k: amp.optim.LAMB(p, lr=0.1, weight_decay=0.1, **k),
    "NovoGrad": lambda p, **k: amp.optim.NovoGrad(p, lr=0.1, weight_decay=0.1, **k),
    "LARS": lambda p, **k: amp.optim.LARS(p, lr=0.1, weight_decay=0.1, trust_coefficient=0.1, **k),
}
EVERY = {**MAKERS, "LARC": lambda p: amp.optim.LARC(torch.optim.SGD(p, lr=0.1, momentum=0.9))}


@pytest.mark.parametrize("name", MAKERS)
def test_groups_have_options_of_their_own(name: str) -> None:
    together, apart = parameters_of(start()), parameters_of(start())
    one = MAKERS[name]([{"params": together[:2]}, {"params": together[2:], "lr": 0.01, "weight_decay": 0.0}])
    two, three = MAKERS[name](apart[:2]), MAKERS[name](apart[2:])
    three.param_groups[0].update(lr=0.01, weight_decay=0.0)
    expected = train(two, apart[:2], [row[:2] for row in rounds()]) + train(three, apart[2:], [r[2:] for r in rounds()])
    for a, b in zip(train(one, together, rounds()), expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", MAKERS)
def test_maximize_ascends(name: str) -> None:
    up, down = parameters_of(start()), parameters_of(start())
    negated: Rounds = [[None if g is None else -g for g in row] for row in rounds()]
    expected = train(MAKERS[name](down), down, negated)
    for a, b in zip(train(MAKERS[name](up, maximize=True), up, rounds()), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", EVERY)
def test_resume_is_exact(name: str) -> None:
    ours, theirs = parameters_of(start()), parameters_of(start())
    through, first = EVERY[name](ours), EVERY[name](theirs)
    expected = train(through, ours, rounds(6))
    train(first, theirs, rounds(6)[:3])
    resumed = EVERY[name](theirs)
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    for a, b in zip(train(resumed, theirs, rounds(6)[3:]), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", EVERY)
def test_a_copy_goes_on_alike(name: str) -> None:
    parameters = parameters_of(start())
    optimizer = EVERY[name](parameters)
    train(optimizer, parameters, rounds())
    again = pickle.loads(pickle.dumps((optimizer, parameters)))
    expected = train(optimizer, parameters, rounds())
    for a, b in zip(train(*again, rounds()), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", EVERY)
def test_a_group_can_be_added_later(name: str) -> None:
    parameters = parameters_of(start())
    optimizer = EVERY[name](parameters[:2])
    train(optimizer, parameters, rounds())
    optimizer.add_param_group({"params": parameters[2:], "lr": 0.5})
    before = [p.detach().clone() for p in parameters]
    train(optimizer, parameters, rounds())
    assert all(not torch.equal(a, b) for a, b in zip(before, parameters, strict=True))
    assert len(optimizer.param_groups) == 2


@pytest.mark.parametrize("name", EVERY)
def test_a_closure_is_evaluated_with_gradients(name: str) -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = EVERY[name]([parameter])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3.0
    assert (parameter < 1).all()


@pytest.mark.parametrize("name", EVERY)
def test_sparse_and_complex_are_refused(name: str) -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match=r"layout torch.sparse_coo.*\(4, 2\); allowed: dense"):
        EVERY[name](table.parameters()).step()
    number = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    number.grad = torch.ones_like(number)
    with pytest.raises(RuntimeError, match="complex64"):
        EVERY[name]([number]).step()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_parameters_have_float32_state_also_after_loading(name: str, dtype: torch.dtype) -> None:
    parameters = parameters_of(start(), dtype)
    optimizer = MAKERS[name](parameters)
    train(optimizer, parameters, rounds())

    def types(one: torch.optim.Optimizer) -> set[torch.dtype]:
        return {v.dtype for state in one.state.values() for v in state.values() if isinstance(v, torch.Tensor)}

    assert types(optimizer) == {torch.float32} and parameters[0].dtype == dtype
    again = MAKERS[name](parameters)
    again.load_state_dict(optimizer.state_dict())
    assert types(again) == {torch.float32}
    for parameter in parameters:
        for key, value in optimizer.state[parameter].items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, again.state[parameter][key])


@pytest.mark.parametrize("name", MAKERS)
def test_master_weights_keep_what_half_would_lose(name: str) -> None:
    tiny: Rounds = [[None if g is None else g * 1e-3 for g in row] for row in rounds(20, missing=False)]
    values = [value.bfloat16().float() for value in start()]
    full = parameters_of(values)
    half, plain_half = parameters_of(values, torch.bfloat16), parameters_of(values, torch.bfloat16)
    options = {"lr": 1e-4}

    def make(parameters: list[nn.Parameter], **more: Any) -> Any:
        optimizer = MAKERS[name](parameters, **more)
        optimizer.param_groups[0].update(options)
        return optimizer

    rounded: Rounds = [[None if g is None else g.bfloat16().float() for g in row] for row in tiny]
    expected = train(make(full), full, rounded)
    optimizer = make(half, master_weights=True)
    train(optimizer, half, rounded)
    train(make(plain_half), plain_half, rounded)
    for parameter, lost, wanted in zip(half, plain_half, expected, strict=True):
        torch.testing.assert_close(optimizer.state[parameter]["master_param"].double(), wanted)
        assert torch.equal(parameter, wanted.float().bfloat16())
        assert lost.dtype == torch.bfloat16
    with torch.no_grad():
        half[0].fill_(2.0)  # a script's own write counts
    train(optimizer, half, rounded[:1])
    assert (optimizer.state[half[0]]["master_param"] - 2.0).abs().max() < 0.1


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_o2_steps_the_float32_masters(name: str, dtype: str) -> None:
    amp.init("O2", dtype=dtype, loss_scale=8.0)
    model = amp.prepare_model(nn.Linear(3, 2))
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = EVERY[name](model.parameters())
    optimizer.param_groups[0]["lr"] = 1e-4
    assert model.weight.dtype in (torch.bfloat16, torch.float16)
    for _ in range(60):
        optimizer.zero_grad()
        loss = model(torch.ones(1, 3)).float().sum()
        amp.scaler.scale(loss).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
    # one step is far below the rounding of a half 1.0; only masters can add 60 of them up
    assert (model.weight.float() < 1.0).all()
    states = [v for v in optimizer.state[model.weight].values() if isinstance(v, torch.Tensor) and v.dim()]
    assert states and all(v.dtype == torch.float32 for v in states)
    resumed = EVERY[name](model.parameters())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    loaded = [v for v in resumed.state[model.weight].values() if isinstance(v, torch.Tensor)]
    assert loaded and all(v.dtype == torch.float32 for v in loaded)


def test_larc_is_an_optimizer_to_schedulers_and_scalers() -> None:
    parameter = nn.Parameter(torch.ones(2))
    inner = torch.optim.SGD([parameter], lr=1.0)
    optimizer = amp.optim.LARC(inner, trust_coefficient=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(parameter.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    assert inner.param_groups[0]["lr"] == 0.5 and optimizer.param_groups is inner.param_groups
    assert torch.equal(parameter, torch.zeros(2))
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.step()
    assert calls == ["before"]
    parameter.grad = torch.full((2,), torch.inf)
    before = parameter.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(parameter, before)


@pytest.mark.parametrize("torchs", [True, False])
def test_larc_around_a_fused_optimizer_is_skipped_after_an_overflow(torchs: bool) -> None:
    """The wrapped optimizer says that it can be told of the overflow; LARC is the one that would be told."""
    parameter = nn.Parameter(torch.ones(2))
    optimizer = amp.optim.LARC(torch.optim.SGD([parameter], lr=1.0, momentum=0.9, fused=True), trust_coefficient=1.0)
    amp.init(opt_level="O1", dtype="fp16", loss_scale="dynamic", init_scale=4.0)
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=4.0) if torchs else amp.scaler
    for _ in range(2):  # the second step has a momentum to go on with
        before = parameter.detach().clone()
        optimizer.zero_grad()
        scaler.scale(parameter.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert not torch.equal(parameter, before)
    scaler.scale((parameter * torch.inf).sum()).backward()
    before = parameter.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(parameter, before)


def test_larc_restores_the_weight_decay_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0, weight_decay=0.1)

    def broken() -> None:
        assert inner.param_groups[0]["weight_decay"] == 0
        raise KeyError("broken")

    monkeypatch.setattr(inner, "step", broken)
    with pytest.raises(KeyError):
        amp.optim.LARC(inner).step()
    assert inner.param_groups[0]["weight_decay"] == 0.1


def test_layouts_that_differ_give_the_same_result() -> None:
    """Gradients and state in another memory format than the parameter's."""
    value, gradients = torch.randn(2, 3, 2, 2), [torch.randn(2, 3, 2, 2) for _ in range(3)]
    for name, make in MAKERS.items():
        ordinary = nn.Parameter(value.clone())
        other = nn.Parameter(value.clone().to(memory_format=torch.channels_last))
        sliced = nn.Parameter(torch.zeros(2, 3, 2, 4)[..., ::2].copy_(value))
        for parameter in (ordinary, other, sliced):
            optimizer = make([parameter])
            for number, gradient in enumerate(gradients):
                parameter.grad = gradient.clone()
                optimizer.step()
                if number == 0 and parameter is ordinary:
                    continue
                if number == 0:
                    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for changed in (other, sliced):
            # Sums in another order differ in their last digits, which is much of an element that is near zero.
            assert torch.allclose(ordinary, changed, atol=1e-6), name


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda p: amp.optim.LAMB(p, lr=-1.0), ValueError, r"LAMB got lr=-1.0; allowed: a number of at least 0"),
        (lambda p: amp.optim.LAMB(p, lr="1"), TypeError, r"LAMB got lr='1'; allowed: a number"),
        (lambda p: amp.optim.LAMB(p, betas=(0.9, 1.0)), ValueError, r"LAMB got betas\[1\]=1.0; allowed:.*below 1"),
        (lambda p: amp.optim.LAMB(p, betas=0.9), TypeError, r"LAMB got betas=0.9; allowed: two numbers"),
        (lambda p: amp.optim.LAMB(p, max_grad_norm=-1), ValueError, r"max_grad_norm=-1; allowed:.*or None"),
        (lambda p: amp.optim.NovoGrad(p, norm_type=1), ValueError, r"NovoGrad got norm_type=1; allowed: 2, 0"),
        (lambda p: amp.optim.LARS(p, 0.1, momentum=1.0), ValueError, r"LARS got momentum=1.0; allowed:.*below 1"),
        (lambda p: amp.optim.LARS(p, 0.1, 0.0, nesterov=True), ValueError, r"LARS got nesterov=True and momentum=0.0"),
        (lambda p: amp.optim.LARC(p), TypeError, r"(?s)LARC got .*; allowed: a torch optimizer"),
        (lambda p: amp.optim.LARC(torch.optim.SGD(p, lr=1), eps=float("nan")), ValueError, r"LARC got eps=nan"),
    ],
)
def test_wrong_arguments_are_named(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make([nn.Parameter(torch.ones(2))])
