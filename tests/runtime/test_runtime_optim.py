"""Optimizers with torch's names."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import amp_runtime as amp
import pytest
import torch
from torch import nn

NAMES = ["Adam", "AdamW", "SGD", "Adagrad"]
OPTIONS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9, "lr": 0.05}}


def train(optimizer: torch.optim.Optimizer, model: nn.Module, steps: int = 4) -> list[torch.Tensor]:
    for number in range(steps):
        optimizer.zero_grad()
        model(torch.full((1, 3), number + 1.0)).square().sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def model_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of torch's fused kernels, as they are called."""
    calls: list[str] = []
    for name in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"):
        kernel = getattr(torch, name)

        def spy(*args: Any, _kernel: Any = kernel, _name: str = name, **kwargs: Any) -> Any:
            calls.append(_name)
            return _kernel(*args, **kwargs)

        monkeypatch.setattr(torch, name, spy)
    return calls


@pytest.mark.parametrize("name", NAMES)
def test_o1_uses_the_fused_kernel_and_agrees_with_torch(name: str, fused_calls: list[str]) -> None:
    ours, theirs = model_of(), model_of()
    options = OPTIONS.get(name, {})
    expected = train(getattr(torch.optim, name)(theirs.parameters(), **options), theirs)
    assert fused_calls == []
    amp.init("O1", dtype="bf16")
    optimizer = getattr(amp.optim, name)(ours.parameters(), **options)
    assert isinstance(optimizer, getattr(torch.optim, name)) and type(optimizer).__name__ == name
    torch.testing.assert_close(train(optimizer, ours), expected)
    assert fused_calls == [f"_fused_{name.lower()}_"] * 4


@pytest.mark.parametrize("name", NAMES)
def test_o0_is_torchs_optimizer(name: str, fused_calls: list[str]) -> None:
    amp.init("O0")
    ours, theirs = model_of(), model_of()
    expected = train(getattr(torch.optim, name)(theirs.parameters(), lr=0.1), theirs)
    actual = train(getattr(amp.optim, name)(ours.parameters(), lr=0.1), ours)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert fused_calls == []


@pytest.mark.parametrize("choice", [{"foreach": True}, {"foreach": False}, {"fused": False}])
def test_the_callers_choice_is_respected(choice: dict[str, bool], fused_calls: list[str]) -> None:
    amp.init("O1", dtype="bf16")
    model = model_of()
    train(amp.optim.AdamW(model.parameters(), **choice), model)
    assert fused_calls == []


def test_a_differentiable_step_stays_differentiable(fused_calls: list[str]) -> None:
    amp.init("O1", dtype="bf16")
    start = torch.ones(2, requires_grad=True)
    weight = start.clone()  # the step is part of the graph from here to the end
    optimizer = amp.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1, differentiable=True)
    optimizer.param_groups[0]["params"] = [weight]
    weight.grad = 2 * start
    optimizer.step()
    weight.sum().backward()
    assert torch.allclose(start.grad, torch.full((2,), 0.8)) and fused_calls == []


def test_a_tensor_learning_rate_and_an_explicit_fused_work() -> None:
    amp.init("O1", dtype="bf16")
    for options in ({"lr": torch.tensor(0.1)}, {"fused": True}):
        model = model_of()
        before = [p.detach().clone() for p in model.parameters()]
        after = train(amp.optim.Adam(model.parameters(), **options), model)
        assert not torch.equal(before[0], after[0])


@pytest.mark.parametrize("name", NAMES)
def test_state_moves_between_ours_and_torchs(name: str) -> None:
    options = OPTIONS.get(name, {})
    amp.init("O1", dtype="bf16")
    one, two, three = model_of(), model_of(), model_of()
    ours = getattr(amp.optim, name)(one.parameters(), **options)
    theirs = getattr(torch.optim, name)(two.parameters(), **options)
    train(ours, one), train(theirs, two)
    state = copy.deepcopy(ours.state_dict())
    assert state["param_groups"] == theirs.state_dict()["param_groups"], "fused is nobody's business outside the step"
    resumed = getattr(amp.optim, name)(three.parameters(), **options)
    three.load_state_dict(one.state_dict())
    resumed.load_state_dict(copy.deepcopy(theirs.state_dict()))
    theirs.load_state_dict(state)
    two.load_state_dict(one.state_dict())
    expected = train(ours, one)
    torch.testing.assert_close(train(theirs, two), expected)
    torch.testing.assert_close(train(resumed, three), expected)
    assert type(pickle.loads(pickle.dumps(ours))) is type(ours)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_that_change_after_construction(name: str) -> None:
    """Moved and converted late, as by ``model.cuda()`` after the optimizer was built."""
    amp.init("O1", dtype="bf16")
    model = model_of()
    optimizer = getattr(amp.optim, name)(model.parameters(), **OPTIONS.get(name, {}))
    state = optimizer.state
    for parameter in model.parameters():  # as if it had been loaded on another device
        if "step" in state[parameter]:
            state[parameter]["step"] = state[parameter]["step"].double()
    after = train(optimizer, model)
    assert all(torch.isfinite(p).all() for p in after)


def test_late_moved_state_follows_its_parameter() -> None:
    from amp_runtime.optim._fused import _move_state

    parameter = nn.Parameter(torch.ones(2, device="meta"))
    optimizer = amp.optim.Adagrad([nn.Parameter(torch.ones(2))])
    optimizer.param_groups[0]["params"] = [parameter]
    optimizer.state[parameter] = {"step": torch.zeros(()), "sum": torch.zeros(2)}
    _move_state(optimizer, optimizer.param_groups[0], {})
    assert {v.device.type for v in optimizer.state[parameter].values()} == {"meta"}


def test_momentum_that_starts_late_for_one_parameter() -> None:
    amp.init("O1", dtype="bf16")
    model = model_of()
    model[0].requires_grad_(False)
    optimizer = amp.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train(optimizer, model, 2)
    model[0].requires_grad_(True)
    before = model[0].weight.detach().clone()
    train(optimizer, model, 2)
    assert not torch.equal(before, model[0].weight)


def test_sparse_gradients_fall_back() -> None:
    amp.init("O1", dtype="bf16")
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = amp.optim.SGD(table.parameters(), lr=1.0)
    before = table.weight.detach().clone()
    table(torch.tensor([2])).sum().backward()
    optimizer.step()
    assert (table.weight != before).any(1).tolist() == [False, False, True, False]


@pytest.mark.parametrize("mixed", [True, False])
def test_step_hooks_run_once(mixed: bool) -> None:
    amp.init("O1" if mixed else "O0", dtype="bf16")
    model = model_of()
    torch.optim.Adam(model.parameters())  # torch wraps the class's step when it is first used
    optimizer = amp.optim.Adam(model.parameters())
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    train(optimizer, model, 1)
    assert calls == ["before", "after"]


def test_a_closure_is_evaluated_and_its_loss_returned() -> None:
    amp.init("O1", dtype="bf16")
    model = model_of()
    optimizer = amp.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 3)).sum()
        loss.backward()
        return loss

    assert isinstance(optimizer.step(closure), torch.Tensor)


@pytest.mark.parametrize("name", NAMES)
def test_signatures_are_torchs(name: str) -> None:
    assert inspect.signature(getattr(amp.optim, name)) == inspect.signature(getattr(torch.optim, name))


def test_other_names_are_torchs() -> None:
    assert amp.optim.RMSprop is torch.optim.RMSprop
    assert amp.optim.lr_scheduler is torch.optim.lr_scheduler


@pytest.mark.parametrize("name", NAMES)
def test_gradients_and_state_in_another_memory_format(name: str, fused_calls: list[str]) -> None:
    """torch's fused kernels walk through memory without a look at strides."""
    amp.init("O1", dtype="bf16")
    value, gradient = torch.randn(2, 3, 2, 2), torch.randn(2, 3, 2, 2)
    expected = nn.Parameter(value.clone())
    actual = nn.Parameter(value.clone())
    gapped = nn.Parameter(torch.zeros(2, 3, 2, 4)[..., ::2].copy_(value))
    options = OPTIONS.get(name, {})
    theirs = getattr(torch.optim, name)([expected], foreach=False, **options)
    ours = getattr(amp.optim, name)([actual], **options)
    sliced = getattr(amp.optim, name)([gapped], **options)
    for number in range(4):
        expected.grad, gapped.grad = gradient.clone(), gradient.clone()
        actual.grad = gradient.clone()
        if number == 1:  # the model becomes channels_last, its state and this gradient do not
            actual.data = actual.data.to(memory_format=torch.channels_last)
        if number == 2:
            actual.grad = gradient.clone(memory_format=torch.preserve_format).to(memory_format=torch.channels_last)
        for optimizer in (theirs, ours, sliced):
            optimizer.step()
        torch.testing.assert_close(actual, expected, check_stride=False)
        torch.testing.assert_close(gapped, expected, check_stride=False)
    assert fused_calls, "where the layouts agree the kernel is used"


@pytest.mark.parametrize("name", NAMES)
def test_loaded_state_of_masters_stays_float32(name: str) -> None:
    amp.init("O2", dtype="bf16")
    model = amp.prepare_model(nn.Linear(3, 2))
    optimizer = getattr(amp.optim, name)(model.parameters(), **OPTIONS.get(name, {}))
    for _ in range(2):
        optimizer.zero_grad()
        amp.scaler.scale(model(torch.full((1, 3), 0.3)).float().square().sum()).backward()
        amp.scaler.step(optimizer)
    again = getattr(amp.optim, name)(model.parameters(), **OPTIONS.get(name, {}))
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for key, value in optimizer.state[model.weight].items():
        assert value.dtype == torch.float32 and torch.equal(again.state[model.weight][key], value), key
