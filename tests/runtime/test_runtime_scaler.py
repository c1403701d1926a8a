"""The scaler in one process, in float16 unless a test says otherwise."""

from __future__ import annotations

import copy
import pickle
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


def test_a_number_stays_one_so_that_a_step_without_a_loss_ends_as_it_did() -> None:
    model, optimizer = small()
    for number in (0, 0.0):
        with pytest.raises(AttributeError, match="backward"):
            amp.scaler.scale(number).backward()
    assert amp.scaler.scale(0) == 0
    before = model.weight.detach().clone()
    backward(model)
    amp.scaler.step(optimizer)
    amp.scaler.update()
    assert torch.allclose(model.weight, before - 0.1) and amp.scaler.get_scale() == 65536.0


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


def test_many_skips_in_a_row_are_an_error() -> None:
    model, optimizer = small()
    amp.scaler.max_skips = 5
    with pytest.raises(amp.GradientOverflowError, match=r"5 steps.* loss \(float32\)") as caught:
        for _ in range(5):
            optimizer.zero_grad()
            backward(model, float("nan"))
            amp.scaler.step(optimizer)
            amp.scaler.update()
    assert caught.value.location is not None and caught.value.location.what == "loss"


def test_an_error_at_the_first_skip_names_the_parameters_because_nothing_was_observed() -> None:
    model, optimizer = small()
    amp.scaler.max_skips = 1
    backward(model, float("nan"))
    amp.scaler.step(optimizer)
    with pytest.raises(amp.GradientOverflowError, match=r"Linear\.weight, Linear\.bias.*locate_overflow") as caught:
        amp.scaler.update()
    assert caught.value.location is None


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


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_gradients_that_a_skipped_step_left_are_cleared_by_the_next_loss(dtype: Any) -> None:
    amp.init("O1", dtype=dtype)
    model = amp.prepare_model(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stepped = []
    for factor in (1.0, INF, 2.0, 3.0):  # and never zero_grad
        backward(model, factor)
        amp.scaler.step(optimizer)
        amp.scaler.update()
        stepped.append(amp.scaler.stepped)
    assert stepped == [True, False, True, True]
    assert model.weight.grad.tolist() == [[5.0] * 3]
    assert amp.scaler.get_scale() == (32768.0 if dtype == "fp16" else 1.0)


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


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_optimizers_that_share_a_backward_pass_may_each_have_an_update(bad: int) -> None:
    amp.init("O1", dtype="fp16", growth_interval=3)
    models = [amp.prepare_model(nn.Linear(3, 1)) for _ in range(3)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    x = torch.ones(1, 3)
    scales = []
    for factor in (1.0, 1e34, 1.0, 1.0, 1.0):
        losses = [model(x).sum() * (factor if index == bad else 1.0) for index, model in enumerate(models)]
        for loss in losses:
            amp.scaler.scale(loss).backward()
        stepped = []
        for optimizer in optimizers:
            amp.scaler.step(optimizer)
            amp.scaler.update()
            stepped.append(amp.scaler.stepped)
            optimizer.zero_grad()
        assert stepped == [not (factor > 1 and index == bad) for index in range(3)]
        scales.append(amp.scaler.get_scale())
    # As with a single update: it falls once, and grows after three good iterations.
    assert scales == [65536.0, 32768.0, 32768.0, 32768.0, 65536.0]


@pytest.mark.parametrize("bad", [0, 1])
def test_skips_of_one_of_several_optimizers_with_an_update_each_are_counted(bad: int) -> None:
    amp.init("O1", dtype="fp16")
    amp.scaler.max_skips = 3
    models = [amp.prepare_model(nn.Linear(3, 1)) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]

    def iteration() -> None:
        for index, model in enumerate(models):
            amp.scaler.scale(model(torch.ones(1, 3)).sum() * (INF if index == bad else 1.0)).backward()
        for optimizer in optimizers:
            amp.scaler.step(optimizer)
            amp.scaler.update()
            optimizer.zero_grad()

    iteration()
    iteration()
    with pytest.raises(amp.GradientOverflowError):
        iteration()
    assert amp.scaler.get_scale() in (65536.0 / 4, 65536.0 / 8)


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


def test_every_method_of_torchs_scaler_is_there() -> None:
    missing = set(dir(torch.amp.GradScaler("cpu"))) - set(dir(amp.scaler))
    assert not {name for name in missing if not name.startswith("_")}, missing


def test_update_takes_a_new_scale() -> None:
    small()
    amp.scaler.update(torch.tensor(16.0))
    assert amp.scaler.get_scale() == 16.0
    with pytest.raises(ValueError, match="0"):
        amp.scaler.update(0.0)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_stepped_is_true_exactly_when_parameters_changed(level: Any, dtype: Any, name: str) -> None:
    amp.init(level, dtype=dtype, init_scale=2.0**10)  # half gradients would overflow at once otherwise
    torch.manual_seed(0)
    model = amp.prepare_model(nn.Linear(3, 1))
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.5)
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    assert amp.scaler.stepped is False and amp.scaler.stepped_by(optimizer) is False
    for factor in (1.0, INF, 1.0, None, float("nan"), 1.0):
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        if factor is not None and not (level == "O0" and factor != 1.0):
            backward(model, factor)
        amp.scaler.step(optimizer)
        changed = any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert amp.scaler.stepped is changed is amp.scaler.stepped_by(optimizer)
        assert all(torch.isfinite(p).all() for p in model.parameters())
        amp.scaler.step(other)
        assert amp.scaler.stepped is False and amp.scaler.stepped_by(optimizer) is changed
        amp.scaler.update()
    assert amp.scaler.skipped_steps == (0 if level == "O0" else 2)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_bfloat16_gradients_are_checked_though_nothing_is_scaled(level: Any) -> None:
    amp.init(level, dtype="bf16")
    model = amp.prepare_model(nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters())
    amp.scaler.max_skips = 3
    with pytest.raises(amp.GradientOverflowError, match=r"3 steps.*loss scale is 1\."):
        for _ in range(3):
            optimizer.zero_grad()
            backward(model, INF)
            amp.scaler.step(optimizer)
            amp.scaler.update()
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert amp.scaler.skipped_steps == 3 and amp.scaler.state_dict() == {}


def test_at_o0_a_bad_gradient_is_stepped_as_plain_torch_does() -> None:
    amp.init("O0")
    model = amp.prepare_model(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model, INF)
    amp.scaler.step(optimizer)
    amp.scaler.update()
    assert amp.scaler.stepped is True and not torch.isfinite(model.weight).all()


def test_accumulating_after_unscaling_is_checked_again_in_bfloat16() -> None:
    amp.init("O1", dtype="bf16")
    model = amp.prepare_model(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    amp.scaler.unscale_(optimizer)
    backward(model, INF)
    amp.scaler.step(optimizer)
    assert amp.scaler.stepped is False


def test_the_first_scale_floor_ceiling_and_interval_come_from_init() -> None:
    model, optimizer = small(init_scale=2.0**20, min_scale=2.0**19, max_scale=2.0**21, growth_interval=2)
    scales = []
    for factor in (INF, INF, 1, 1, 1, 1, 1, 1):
        optimizer.zero_grad()
        backward(model, factor)
        amp.scaler.step(optimizer)
        amp.scaler.update()
        scales.append(amp.scaler.get_scale())
    assert scales == [2.0**n for n in (19, 19, 19, 20, 20, 21, 21, 21)]


def test_a_gradient_penalty_is_computed_from_true_gradients() -> None:
    def train(scaler: Any) -> tuple[list[float], list[float]]:
        torch.manual_seed(0)
        critic = amp.prepare_model(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
        penalties = []
        for _ in range(4):
            x = torch.randn(5, 4, requires_grad=True)
            loss = critic(x).sum()
            grads = torch.autograd.grad(scaler.scale(loss), x, create_graph=True)
            (true,) = scaler.unscale_gradients(grads)
            penalty = (true.norm(dim=1) - 1).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss + penalty).backward()
            scaler.step(optimizer)
            scaler.update()
            penalties.append(penalty.item())
        return penalties, [value for p in critic.parameters() for value in p.flatten().tolist()]

    amp.init("O0")
    expected = train(amp.scaler)
    amp.init("O1", dtype="fp16")
    got = train(amp.scaler)
    assert got[0] == pytest.approx(expected[0], rel=1e-5) and got[1] == pytest.approx(expected[1], rel=1e-4, abs=1e-6)
    with pytest.raises(TypeError, match="str"):
        amp.scaler.unscale_gradients("grads")


def test_other_arguments_of_step_are_passed_on() -> None:
    class Fussy(torch.optim.SGD):
        def step(self, closure: Any = None, *, epoch: int) -> int:  # type: ignore[override]
            super().step(closure)
            return epoch

    model, _ = small()
    optimizer = Fussy(model.parameters(), lr=0.1)
    backward(model)
    assert amp.scaler.step(optimizer, epoch=3) == 3


def test_an_object_and_the_optimizer_in_it_are_the_same_to_the_scaler() -> None:
    model, optimizer = small()

    class Wrapper:
        def __init__(self) -> None:
            self.optim = optimizer

        def step(self) -> None:
            self.optim.step()

    wrapper = Wrapper()
    backward(model)
    amp.scaler.unscale_(optimizer)
    amp.scaler.step(wrapper)
    assert model.weight.grad.tolist() == [[1.0] * 3], "unscaled once"
    assert amp.scaler.stepped_by(optimizer) is amp.scaler.stepped_by(wrapper) is True


def test_gradients_of_several_types_at_once() -> None:
    small()
    kinds = [torch.float32, torch.float64, torch.bfloat16, torch.complex64]
    parameters = [nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in kinds]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    for bad in (None, 0, 3):
        optimizer.zero_grad()
        amp.scaler.scale(
            sum(p.real.sum().float() if p.is_complex() else p.sum().float() for p in parameters)
        ).backward()
        if bad is not None:
            parameters[bad].grad[0] = INF
        amp.scaler.unscale_(optimizer)
        if bad is None:
            assert all(p.grad.tolist() == [1, 1] for p in parameters)
        amp.scaler.step(optimizer)
        assert amp.scaler.stepped is (bad is None)


def test_a_sparse_gradient_that_overflows_when_its_indices_are_summed() -> None:
    small()
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    before = table.weight.detach().clone()
    amp.scaler.scale(table(torch.tensor([1, 1])).sum() * 3e33).backward()
    assert torch.isfinite(table.weight.grad._values()).all()
    amp.scaler.step(optimizer)
    assert amp.scaler.stepped is False and torch.equal(before, table.weight)


@pytest.mark.heavy
def test_ten_thousand_steps_with_random_overflows() -> None:
    amp.init("O1", dtype="fp16", growth_interval=3)
    model = amp.prepare_model(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    amp.scaler.max_skips = 10_000
    draws = torch.rand(10_000, generator=torch.Generator().manual_seed(0)).tolist()
    long_trouble = range(4000, 4300)  # torch's scale would be 0 after it
    for number, draw in enumerate(draws):
        bad = draw < 0.3 or number in long_trouble
        optimizer.zero_grad()
        loss = model.weight.sum() + model.bias.sum()
        amp.scaler.scale(loss).backward()
        if bad:
            model.weight.grad[0, 0] = float("nan") if draw < 0.15 else INF
        amp.scaler.step(optimizer)
        assert amp.scaler.stepped is not bad
        amp.scaler.update()
        assert 0 < amp.scaler.min_scale <= amp.scaler.get_scale() <= amp.scaler.max_scale
    assert torch.isfinite(model.weight).all() and torch.isfinite(model.bias).all()


def test_libraries_take_it_for_a_grad_scaler() -> None:
    assert isinstance(amp.scaler, torch.amp.GradScaler)
    model, optimizer = small()
    backward(model, INF)
    amp.scaler.step(optimizer)
    amp.scaler.update()
    for copied in (pickle.loads(pickle.dumps(amp.scaler)), copy.deepcopy(amp.scaler)):
        assert type(copied) is amp.Scaler and copied is not amp.scaler
        assert copied.state_dict() == amp.scaler.state_dict()
    theirs = torch.amp.GradScaler("cpu")
    theirs.load_state_dict(amp.scaler.state_dict())
    assert theirs.get_scale() == amp.scaler.get_scale() == 2.0**15


def test_one_that_is_not_enabled_hands_everything_through() -> None:
    model, optimizer = small()
    off = amp.Scaler(enabled=False)
    loss = model(torch.ones(1, 3)).sum()
    assert off.scale(loss) is loss and not off.is_enabled() and off.get_scale() == 1.0
    (loss * INF).backward()
    off.step(optimizer)
    off.update()
    assert not torch.isfinite(model.weight).all(), "a step is made as it is"
    assert not off.state_dict()


def test_the_count_of_skips_is_read_in_time_for_the_error() -> None:
    model, _ = small()
    optimizer = amp.optim.AdamW(model.parameters())  # skips on the device, where nobody looks at each step
    amp.scaler.max_skips = 7
    for number in range(40):
        optimizer.zero_grad()
        backward(model, INF if number > 20 and number != 25 else 1.0)
        amp.scaler.step(optimizer)
        if number == 32:
            with pytest.raises(amp.GradientOverflowError, match="7 steps in a row"):
                amp.scaler.update()
            break
        amp.scaler.update()
    assert amp.scaler.skipped_steps == 11


@pytest.mark.parametrize("name", ["FusedAdam", "FusedMixedPrecisionLamb"])
def test_optimizers_that_keep_their_step_on_the_device_are_skipped(name: str) -> None:
    model, _ = small()
    options = {"capturable": True} if name == "FusedAdam" else {}
    optimizer = getattr(amp.optim, name)(model.parameters(), lr=0.1, **options)
    for bad in (False, True, False):
        before = model.weight.detach().clone()
        optimizer.zero_grad()
        backward(model, INF if bad else 1.0)
        amp.scaler.step(optimizer)
        amp.scaler.update()
        assert torch.equal(before, model.weight) is bad and torch.isfinite(model.weight).all()
    assert int(optimizer.param_groups[0]["step"]) == 2
