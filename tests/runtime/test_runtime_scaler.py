"""The scaler in one process, in float16 unless a test says otherwise."""

from __future__ import annotations

from typing import Any

import amp_runtime as amp
import pytest
import torch
from torch import nn

INF = float("inf")


def small(**settings: Any) -> tuple[nn.Linear, torch.optim.Optimizer]:
    amp.init("O1", dtype="fp16", **settings)
    torch.manual_seed(0)
    model = amp.prepare_model(nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def backward(model: nn.Module, factor: float = 1.0) -> None:
    amp.scaler.scale(model(torch.ones(1, 3)).sum() * factor).backward()


def test_gradients_are_scaled_and_unscaled_to_their_true_values() -> None:
    model, optimizer = small()
    backward(model)
    assert model.weight.grad.tolist() == [[65536.0] * 3]
    amp.scaler.unscale_(optimizer)
    assert model.weight.grad.tolist() == [[1.0] * 3]
    amp.scaler.unscale_(optimizer)
    assert model.weight.grad.tolist() == [[1.0] * 3], "the second time changes nothing"
    before = model.weight.detach().clone()
    amp.scaler.step(optimizer)
    assert torch.allclose(model.weight, before - 0.1)


def test_a_half_loss_is_scaled_in_float32() -> None:
    small()
    loss = torch.tensor(3.0, dtype=torch.float16)
    assert amp.scaler.scale(loss).item() == 3.0 * 65536
    assert [t.item() for t in amp.scaler.scale([loss, loss])] == [3.0 * 65536] * 2
    with pytest.raises(TypeError, match="'loss'"):
        amp.scaler.scale("loss")


@pytest.mark.parametrize("value", [INF, float("nan")])
@pytest.mark.parametrize("unscale", [True, False])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_an_overflow_skips_the_step_and_halves_the_scale(value: float, unscale: bool, name: str) -> None:
    model, _ = small()
    optimizer = getattr(amp.optim, name)(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    backward(model, value)
    if unscale:
        amp.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert amp.scaler.step(optimizer) is None
    amp.scaler.update()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert amp.scaler.get_scale() == 32768.0 and amp.scaler.skipped_steps == 1
    optimizer.zero_grad()
    backward(model)
    amp.scaler.step(optimizer)
    amp.scaler.update()
    assert not torch.equal(before[0], model.weight) and torch.isfinite(model.weight).all()


def test_torchs_own_fused_optimizer_is_skipped_too() -> None:
    model, _ = small()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    before = model.weight.detach().clone()
    backward(model, INF)
    amp.scaler.step(optimizer)
    assert torch.equal(before, model.weight)


def test_the_scale_grows_after_good_steps_and_has_a_floor() -> None:
    model, optimizer = small()
    amp.scaler.growth_interval = 3
    for _ in range(3):
        optimizer.zero_grad()
        backward(model)
        amp.scaler.step(optimizer)
        amp.scaler.update()
    assert amp.scaler.get_scale() == 2 * 65536
    for _ in range(60):
        optimizer.zero_grad()
        backward(model, INF)
        amp.scaler.step(optimizer)
        amp.scaler.update()
    assert amp.scaler.get_scale() == amp.scaler.min_scale > 0
    optimizer.zero_grad()
    backward(model)
    amp.scaler.step(optimizer)
    assert torch.isfinite(model.weight).all()


def test_many_skips_in_a_row_are_an_error_that_names_the_parameter() -> None:
    model, optimizer = small()
    amp.scaler.max_skips = 5
    with pytest.raises(amp.GradientOverflowError, match=r"5 steps.*Linear\.weight"):
        for _ in range(5):
            optimizer.zero_grad()
            backward(model, float("nan"))
            amp.scaler.step(optimizer)
            amp.scaler.update()


def test_good_steps_in_between_reset_the_count_of_skips() -> None:
    model, optimizer = small()
    amp.scaler.max_skips = 3
    for number in range(12):
        optimizer.zero_grad()
        backward(model, 1.0 if number % 3 == 2 else INF)
        amp.scaler.step(optimizer)
        amp.scaler.update()
    assert amp.scaler.skipped_steps == 8


def test_a_static_scale_stays_and_still_skips() -> None:
    model, optimizer = small(loss_scale=128)
    before = model.weight.detach().clone()
    backward(model, INF)
    amp.scaler.step(optimizer)
    amp.scaler.update()
    assert amp.scaler.get_scale() == 128.0 and torch.equal(before, model.weight)


def test_an_optimizer_without_gradients_is_stepped() -> None:
    _model, optimizer = small()
    calls = []
    optimizer.step = lambda: calls.append(1) or 7.0  # type: ignore[assignment, func-returns-value]
    backward(nn.Linear(3, 1))
    assert amp.scaler.step(optimizer) == 7.0
    assert calls == [1]


def test_update_without_a_step_changes_nothing() -> None:
    model, _ = small()
    amp.scaler.growth_interval = 1
    amp.scaler.update()
    backward(model)
    amp.scaler.update()
    assert amp.scaler.get_scale() == 65536.0


def test_unscaling_without_stepping_counts_and_does_not_spoil_the_next_iteration() -> None:
    model, optimizer = small()
    backward(model, INF)
    amp.scaler.unscale_(optimizer)
    amp.scaler.update()
    assert amp.scaler.get_scale() == 32768.0
    optimizer.zero_grad()
    backward(model)
    amp.scaler.unscale_(optimizer)
    assert model.weight.grad.tolist() == [[1.0] * 3]


def test_gradients_kept_over_a_step_accumulate_as_in_float32() -> None:
    model, optimizer = small()
    optimizer.param_groups[0]["lr"] = 0.0
    for expected in (1.0, 3.0, 6.0):
        backward(model, expected - (0 if expected == 1.0 else model.weight.grad[0, 0].item()))
        amp.scaler.step(optimizer)
        amp.scaler.update()
        assert model.weight.grad.tolist() == [[expected] * 3]


def test_clipping_after_every_backward_of_an_accumulation() -> None:
    def run(scaler: Any) -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(6):
            loss = model(torch.full((1, 3), float(number))).sum()
            if scaler is None:
                loss.backward()
            else:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.5)
            if number % 3 == 2:
                optimizer.step() if scaler is None else (scaler.step(optimizer), scaler.update())
                optimizer.zero_grad()
        return model.weight.flatten().tolist()

    expected = run(None)
    small()
    assert run(amp.scaler) == pytest.approx(expected, abs=1e-6)


def test_two_steps_with_the_same_gradients() -> None:
    model, optimizer = small()
    before = model.weight.detach().clone()
    backward(model)
    amp.scaler.step(optimizer)
    amp.scaler.step(optimizer)
    amp.scaler.update()
    assert torch.allclose(model.weight, before - 0.2)
    assert amp.scaler.get_scale() == 65536.0


def test_an_overflow_of_one_of_two_optimizers_lowers_the_scale_once() -> None:
    first, one = small()
    second = nn.Linear(3, 1)
    two = torch.optim.SGD(second.parameters(), lr=0.1)
    before = first.weight.detach().clone(), second.weight.detach().clone()
    backward(first)
    backward(second, INF)
    amp.scaler.step(one)
    amp.scaler.step(two)
    amp.scaler.update()
    assert amp.scaler.get_scale() == 32768.0
    assert not torch.equal(before[0], first.weight) and torch.equal(before[1], second.weight)


def test_closures_run_where_nothing_is_scaled_and_are_refused_in_float16() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(1, 3)).square().sum()
        loss.backward()
        return loss

    for dtype in ("bf16", None):
        amp.init("O0" if dtype is None else "O1", dtype=dtype or "auto")
        assert amp.scaler.step(optimizer, closure) is not None
    amp.init("O1", dtype="fp16")
    with pytest.raises(RuntimeError, match=r"LBFGS.*closure.*bf16"):
        amp.scaler.step(optimizer, closure)


def test_an_object_around_an_optimizer_is_accepted() -> None:
    model, optimizer = small()

    class Scheduled:
        def __init__(self) -> None:
            self.optimizer = optimizer
            self.steps = 0

        def step(self) -> None:
            self.steps += 1
            self.optimizer.step()

    scheduled = Scheduled()
    before = model.weight.detach().clone()
    backward(model)
    amp.scaler.step(scheduled)
    assert scheduled.steps == 1 and torch.allclose(model.weight, before - 0.1)
    with pytest.raises(TypeError, match="optimizer"):
        amp.scaler.step(object())


def test_sparse_and_complex_gradients() -> None:
    small()
    table = nn.Embedding(5, 2, sparse=True)
    wave = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    optimizer = torch.optim.SGD([*table.parameters(), wave], lr=1.0)
    loss = table(torch.tensor([1, 1, 3])).sum() + torch.view_as_real(wave).sum()
    amp.scaler.scale(loss).backward()
    amp.scaler.unscale_(optimizer)
    assert table.weight.grad.to_dense()[:, 0].tolist() == [0, 2, 0, 1, 0]
    assert wave.grad.tolist() == [1 + 1j] * 2
    amp.scaler.step(optimizer)
    assert amp.scaler.skipped_steps == 0


def test_the_schedulers_warning_is_not_provoked_by_a_skip(recwarn: pytest.WarningsRecorder) -> None:
    model, optimizer = small()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    backward(model, INF)
    amp.scaler.step(optimizer)
    amp.scaler.update()
    scheduler.step()
    assert not [w for w in recwarn if "lr_scheduler.step" in str(w.message)]


def test_the_state_is_that_of_torchs_scaler() -> None:
    model, optimizer = small()
    backward(model, INF)
    amp.scaler.step(optimizer)
    amp.scaler.update()
    saved = amp.scaler.state_dict()
    theirs = torch.amp.GradScaler("cpu")
    assert saved.keys() == theirs.state_dict().keys()
    theirs.load_state_dict(saved)
    assert theirs.get_scale() == 32768.0
    amp.shutdown()
    small()
    amp.scaler.load_state_dict(theirs.state_dict())
    assert amp.scaler.state_dict() == saved
    amp.scaler.load_state_dict({})
    assert amp.scaler.state_dict() == saved, "a checkpoint of an O0 run changes nothing"
    missing = set(dir(theirs)) - set(dir(amp.scaler))
    assert not {name for name in missing if not name.startswith("_")}, missing


def test_update_takes_a_new_scale() -> None:
    small()
    amp.scaler.update(torch.tensor(16.0))
    assert amp.scaler.get_scale() == 16.0
    with pytest.raises(ValueError, match="0"):
        amp.scaler.update(0.0)
