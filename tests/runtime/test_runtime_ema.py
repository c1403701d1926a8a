"""The average of a model's weights."""

from __future__ import annotations

import copy
import random
from typing import Any

import amp_runtime as amp
import pytest
import torch
import torch.nn.functional as F
from torch import nn

INF = float("inf")
LEVELS = ["O0", "O1", "O2", "O3"]


class Net(nn.Module):
    """Tied weights, batch norm, a half-precision-to-be buffer and one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("offset", torch.full((4,), 0.3))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x)))) + self.offset


def prepared(level: Any, kind: Any = Net, **settings: Any) -> tuple[Any, torch.optim.Optimizer]:
    amp.init(level, dtype="bf16", **settings)
    torch.manual_seed(0)
    model = amp.prepare_model(kind())
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def step(model: Any, optimizer: torch.optim.Optimizer, factor: float = 1.0) -> None:
    optimizer.zero_grad()
    with amp.autocast():
        loss = model(torch.randn(6, 4)).square().mean() * factor
    amp.scaler.scale(loss).backward()
    amp.scaler.step(optimizer)
    amp.scaler.update()


def bits(model: nn.Module) -> list[torch.Tensor]:
    return [
        t.detach().clone().contiguous().view(torch.uint8) for t in (*model.parameters(), *model.buffers()) if t.dim()
    ]


def same(first: Any, second: Any) -> bool:
    return len(first) == len(second) > 0 and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("level", LEVELS)
def test_it_follows_the_full_weights_as_a_plain_average_does(level: str) -> None:
    model, optimizer = prepared(level)
    ema = amp.EMA(model, decay=0.8)
    expected = {name: value.double() for name, value in model.state_dict().items() if value.is_floating_point()}
    for _ in range(7):
        step(model, optimizer)
        ema.update()
        for name, value in model.state_dict().items():
            if name in expected:
                expected[name] = 0.8 * expected[name] + 0.2 * value.double()
    state = ema.module.state_dict()
    assert set(state) == set(model.state_dict())
    for name, value in expected.items():
        assert state[name].dtype is torch.float32
        torch.testing.assert_close(state[name].double(), value, rtol=1e-5, atol=1e-6)
    assert state["norm.num_batches_tracked"] == 7 and ema.updates == 7


def test_it_agrees_with_torchs_own_at_o0() -> None:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model, optimizer = prepared("O0")
    ema = amp.EMA(model, decay=0.9)
    theirs = AveragedModel(copy.deepcopy(model), multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=False)
    theirs.update_parameters(model)  # the first time copies the weights
    for _ in range(5):
        step(model, optimizer)
        ema.update(model)
        theirs.update_parameters(model)
    torch.testing.assert_close(list(ema.module.parameters()), list(theirs.module.parameters()))


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_it_moves_where_half_precision_would_stand_still(level: str) -> None:
    model, _ = prepared(level, lambda: nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model.weight.fill_(1.0)
    ema = amp.EMA(model, decay=0.9999)
    with torch.no_grad():
        model.weight.fill_(2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(10):
        model.weight.grad = torch.zeros_like(model.weight)
        amp.scaler.step(optimizer)
        ema.update()
    assert ema.module.weight.item() == pytest.approx(1.001, rel=1e-4)
    assert ema.module.weight.dtype is torch.float32


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_skipped_step_does_not_move_it(level: Any) -> None:
    amp.init(level, dtype="fp16", init_scale=64.0)
    model = amp.prepare_model(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ema = amp.EMA(model, decay=0.5)
    for skipped in (False, True, True, False):
        before = bits(ema.module)
        optimizer.zero_grad()
        loss = model(torch.randn(6, 4)).float().square().sum() * (INF if skipped else 1.0)
        amp.scaler.scale(loss).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
        ema.update()
        assert same(bits(ema.module), before) is skipped
    assert ema.updates == 2


def test_with_several_optimizers_it_follows_its_own() -> None:
    model, optimizer = prepared("O1")
    other = nn.Linear(4, 4)
    idle = torch.optim.SGD(other.parameters(), lr=0.1)
    following_any, own = amp.EMA(model), amp.EMA(model, optimizer=optimizer)
    step(model, optimizer)
    amp.scaler.step(idle)  # it has no gradients, so nothing changes
    following_any.update()
    own.update()
    assert (following_any.updates, own.updates) == (0, 1)


@pytest.mark.parametrize("level", ["O0", "O1"])
def test_it_follows_an_optimizer_that_the_script_steps_itself(level: str) -> None:
    model, optimizer = prepared(level)
    plain, told = amp.EMA(model), amp.EMA(model, optimizer=optimizer)
    model(torch.randn(6, 4)).sum().backward()
    optimizer.step()
    plain.update()
    told.update()
    assert (plain.updates, told.updates) == (1, 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fails", [False, True])
def test_applied_puts_it_in_the_models_place_and_every_bit_back(level: str, fails: bool) -> None:
    model, optimizer = prepared(level)
    ema = amp.EMA(model, decay=0.7)
    for _ in range(3):
        step(model, optimizer)
        ema.update()
    average = copy.deepcopy(ema.module.state_dict())
    before, full = bits(model), copy.deepcopy(model.state_dict())
    model.eval()
    try:
        with ema.applied() as inside:
            assert inside is amp.unwrap(model) and not same(bits(model), before)
            for parameter, shadow in zip(model.parameters(), ema.module.parameters(), strict=True):
                assert torch.equal(parameter, shadow.to(parameter.dtype))
            if level != "O3":
                assert all(torch.equal(v, average[k]) for k, v in model.state_dict().items())
            with ema.applied():
                model(torch.randn(6, 4))
            assert not same(bits(model), before), "still the average after an inner block"
            model.first.weight.data.zero_()
            model.norm.running_mean.zero_()
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert same(bits(model), before)
    assert all(torch.equal(v, full[k]) for k, v in model.state_dict().items())
    assert all(torch.equal(v, average[k]) for k, v in ema.module.state_dict().items())


@pytest.mark.parametrize("level", LEVELS)
def test_evaluating_it_leaves_no_trace_in_the_training(level: str) -> None:
    results = []
    for evaluate in (False, True):
        amp.shutdown()
        model, optimizer = prepared(level)
        ema = amp.EMA(model, decay=0.7)
        torch.manual_seed(1)
        for _ in range(4):
            step(model, optimizer)
            ema.update()
            if evaluate:
                with ema.applied(), torch.inference_mode():
                    model(torch.zeros(6, 4))  # in training mode, so that batch norm writes too
        results.append([*bits(model), *bits(ema.module)])
    assert same(*results)


def test_applied_inside_an_autocast_region_is_not_held_up_by_its_cache() -> None:
    model, _ = prepared("O1", lambda: nn.Linear(4, 4, bias=False))
    ema = amp.EMA(model)
    with torch.no_grad():
        model.weight.mul_(3)
    x = torch.ones(1, 4)
    with amp.autocast():
        trained = model(x)
        with ema.applied():
            averaged = model(x)
        again = model(x)
    torch.testing.assert_close(averaged * 3, trained, rtol=2e-2, atol=2e-2)
    assert torch.equal(again, trained) and not torch.equal(averaged, trained)


def test_updating_inside_applied_is_an_error_and_so_is_another_model() -> None:
    model, _ = prepared("O0")
    ema = amp.EMA(model)
    with ema.applied(), pytest.raises(RuntimeError, match="applied"):
        ema.update()
    with pytest.raises(ValueError, match="another Linear"):
        ema.update(nn.Linear(1, 1))


@pytest.mark.parametrize("level", LEVELS)
def test_the_module_is_a_float32_copy_that_moves_along(level: str) -> None:
    model, optimizer = prepared(level)
    ema = amp.EMA(model, decay=0.5)
    module: Any = ema.module
    assert module is ema.module and not module.training and model.training
    assert module.first.weight is module.last.weight, "tied weights stay tied"
    assert not any(p.requires_grad for p in module.parameters())
    before = bits(module)
    step(model, optimizer)
    ema.update()
    assert not same(bits(module), before)
    assert {t.dtype for t in (*module.parameters(), *module.buffers())} == {torch.float32, torch.int64}
    assert module(torch.randn(3, 4)).dtype is torch.float32


def test_buffers_are_averaged_or_copied() -> None:
    model, optimizer = prepared("O0")
    averaged, copied = amp.EMA(model, 0.5), amp.EMA(model, 0.5, buffers="copy")
    for _ in range(3):
        step(model, optimizer)
        averaged.update()
        copied.update()
    assert torch.equal(copied.module.norm.running_mean, model.norm.running_mean)
    assert not torch.equal(averaged.module.norm.running_mean, model.norm.running_mean)
    assert averaged.module.norm.num_batches_tracked == copied.module.norm.num_batches_tracked == 3


def test_decay_may_warm_up_or_be_a_function_and_updates_may_be_rarer() -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    asked: list[int] = []

    def decay(moves: int) -> float:
        asked.append(moves)
        return 0.5

    model.weight.data.fill_(0.0)
    warm, function, rare = (
        amp.EMA(model, 0.9999, warmup=True),
        amp.EMA(model, decay),
        amp.EMA(model, 0.5, update_every=3),
    )
    model.weight.data.fill_(1.0)
    for number in range(1, 8):
        model.weight.grad = torch.zeros_like(model.weight)
        amp.scaler.step(optimizer)
        for ema in (warm, function, rare):
            ema.update()
        if number == 1:
            assert warm.module.weight.item() == pytest.approx(1 - 2 / 11)
        assert rare.module.weight.item() == 1 - 0.5 ** (number // 3)
    assert asked == list(range(7)) and function.module.weight.item() == 1 - 0.5**7
    assert rare.updates == 7


@pytest.mark.parametrize("level", LEVELS)
def test_a_state_comes_back_and_the_average_goes_on_alike(level: str) -> None:
    model, optimizer = prepared(level)
    first, second = amp.EMA(model, 0.9, warmup=True, update_every=2), amp.EMA(model, 0.9, warmup=True, update_every=2)
    for _ in range(3):
        step(model, optimizer)
        first.update()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.updates == 3
    for _ in range(3):
        step(model, optimizer)
        first.update()
        second.update()
    assert same(bits(first.module), bits(second.module))


def test_states_of_other_programs_load() -> None:
    from torch.optim.swa_utils import AveragedModel

    model, _ = prepared("O0")
    wanted = Net()
    theirs = AveragedModel(wanted, use_buffers=True)
    theirs.update_parameters(wanted)
    plain = wanted.state_dict()
    listed = {"decay": 0.9, "num_updates": 4, "shadow_params": [p.detach().clone() for p in wanted.parameters()]}
    states: list[Any] = [theirs.state_dict(), plain, {f"module.{k}": v for k, v in plain.items()}, listed]
    states.append({f"module.module.{k}": v.half() if v.is_floating_point() else v for k, v in plain.items()})
    for state, updates in zip(states, (1, 0, 0, 4, 0), strict=True):
        ema = amp.EMA(model)
        ema.load_state_dict(state)
        torch.testing.assert_close(list(ema.module.parameters()), list(wanted.parameters()), rtol=1e-3, atol=1e-3)
        assert ema.updates == updates
    back = AveragedModel(Net())
    back.load_state_dict(amp.EMA(model).state_dict())
    assert torch.equal(back.module.first.weight, model.first.weight)


def test_a_state_of_another_model_is_refused_whole() -> None:
    ema = amp.EMA(nn.Linear(3, 2))
    before = bits(ema.module)
    with pytest.raises(
        RuntimeError, match=r"fit Linear; missing: bias; unexpected: more; .*weight \(1, 1\) instead of"
    ):
        ema.load_state_dict({"weight": torch.zeros(1, 1), "more": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="3 shadow_params for a Linear with 2 trainable"):
        ema.load_state_dict({"shadow_params": [torch.zeros(1)] * 3})
    ema.load_state_dict({"bias": torch.ones(2), "more": torch.zeros(1)}, strict=False)
    assert torch.equal(ema.module.bias, torch.ones(2))
    assert same(bits(ema.module)[:1], before[:1])


def test_it_begins_anew_on_request() -> None:
    model, optimizer = prepared("O2")
    ema = amp.EMA(model)
    step(model, optimizer)
    ema.update()
    model.load_state_dict(Net().state_dict())
    ema.reset()
    assert ema.updates == 0
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in ema.module.state_dict().items())


def test_it_follows_parameters_that_are_replaced_or_reshaped() -> None:
    model, _ = prepared("O0", lambda: nn.Linear(2, 2))
    ema = amp.EMA(model, 0.5)
    model.weight = nn.Parameter(torch.full((2, 2), 3.0))
    model.bias = nn.Parameter(torch.ones(5))
    start = ema.state_dict()["module.weight"].clone()
    ema.update()
    torch.testing.assert_close(ema.state_dict()["module.weight"], (start + 3.0) / 2)
    assert torch.equal(ema.state_dict()["module.bias"], torch.ones(5))
    elsewhere = amp.EMA(nn.Linear(2, 2), device="meta")
    elsewhere.update()
    assert elsewhere.state_dict()["module.weight"].is_meta


def test_a_model_that_was_made_before_its_masters_is_followed_exactly() -> None:
    amp.init("O2", dtype="bf16")
    torch.manual_seed(0)
    net = Net()
    early = amp.EMA(net, 0.5)
    model = amp.prepare_model(net)
    late = amp.EMA(model, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        step(model, optimizer)
        early.update()
        late.update()
    assert all(torch.equal(v, late.state_dict()[k]) for k, v in early.state_dict().items() if "scratch" not in k)


def test_complex_double_and_integer_parameters_keep_their_kind() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Parameter(torch.ones(2, dtype=torch.float64))
            self.wave = nn.Parameter(torch.ones(2, dtype=torch.complex64))
            self.count = nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False)

    model = Odd()
    ema = amp.EMA(model, 0.5)
    with torch.no_grad():
        model.wide += 1
        model.wave += 2j
        model.count += 4
    ema.update()
    assert ema.module.wide.tolist() == [1.5, 1.5] and ema.module.wide.dtype is torch.float64
    assert ema.module.wave.tolist() == [1 + 1j, 1 + 1j]
    assert ema.module.count.tolist() == [5, 5]


def test_it_draws_no_random_number() -> None:
    torch.manual_seed(3)
    random.seed(3)
    model = nn.Linear(2, 2)
    before = torch.get_rng_state(), random.getstate()
    ema = amp.EMA(model)
    ema.update()
    with ema.applied():
        ema.module(torch.zeros(1, 2))
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


def test_wrappers_are_looked_through() -> None:
    net = nn.Linear(2, 2)
    for wrapped in (nn.DataParallel(net), torch.compile(net, backend="eager")):
        ema = amp.EMA(wrapped)
        assert set(ema.state_dict()) == {"n_averaged", "module.weight", "module.bias"}
        ema.update(wrapped)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decay": 1.5}, "decay=1.5"),
        ({"decay": "0.9"}, "decay='0.9'"),
        ({"update_every": 0}, "update_every=0"),
        ({"buffers": "no"}, "buffers='no'; allowed: 'average', 'copy'"),
    ],
)
def test_wrong_arguments_are_named(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        amp.EMA(nn.Linear(1, 1), **arguments)


def test_what_is_no_model_or_a_lazy_one_is_refused() -> None:
    with pytest.raises(TypeError, match="SGD"):
        amp.EMA(torch.optim.SGD(nn.Linear(1, 1).parameters()))
    with pytest.raises(ValueError, match="weight is lazy"):
        amp.EMA(nn.LazyLinear(3))


def test_loss_goes_down_for_the_average_too() -> None:
    model, optimizer = prepared("O2", lambda: nn.Linear(4, 2))
    ema = amp.EMA(model, 0.9, warmup=True)
    x = torch.randn(32, 4)
    y = (x[:, 0] > 0).long()

    def loss() -> float:
        with torch.no_grad():
            return F.cross_entropy(model(x).float(), y).item()

    start = loss()
    for _ in range(60):
        optimizer.zero_grad()
        amp.scaler.scale(F.cross_entropy(model(x), y)).backward()
        amp.scaler.step(optimizer)
        ema.update()
    with ema.applied():
        assert loss() < 0.7 * start
