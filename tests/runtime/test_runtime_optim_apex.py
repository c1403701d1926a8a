"""The optimizers with Apex's names, against plain versions of Apex's kernels, its checkpoints and torch."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import amp_runtime as amp
import plain_optim as plain
import pytest
import torch
from amp_runtime.apex import optimizers as apex_optimizers
from amp_runtime.apex.contrib import optimizers as old_optimizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from properties import examples
from test_runtime_optim_layerwise import parameters_of, rounds, start, train
from torch import nn

quick = settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
rates = st.sampled_from([1e-3, 0.05, 0.3])
decays = st.sampled_from([0.0, 0.01, 0.3])
betas = st.sampled_from([(0.9, 0.999), (0.95, 0.98), (0.0, 0.5)])
yes_no = st.booleans()

SIGNATURES = {
    "FusedSGD": "params lr momentum dampening weight_decay nesterov wd_after_momentum "
    "materialize_master_grads set_grad_none",
    "FusedAdam": "params lr bias_correction betas eps adam_w_mode weight_decay amsgrad set_grad_none "
    "capturable master_weights",
    "FusedLAMB": "params lr bias_correction betas eps weight_decay amsgrad adam_w_mode grad_averaging set_grad_none "
    "max_grad_norm use_nvlamb",
    "FusedNovoGrad": "params lr bias_correction betas eps weight_decay amsgrad reg_inside_moment grad_averaging "
    "norm_type init_zero set_grad_none",
    "FusedAdagrad": "params lr eps weight_decay set_grad_none adagrad_w_mode",
    "FusedMixedPrecisionLamb": "params lr step bias_correction betas eps weight_decay amsgrad adam_w_mode "
    "grad_averaging max_grad_norm use_nvlamb reduced_precision_dtype",
    "NpuFusedSGD": "params lr momentum dampening weight_decay nesterov",
    "NpuFusedAdam": "params lr betas eps weight_decay amsgrad",
    "NpuFusedAdamW": "params lr betas eps weight_decay amsgrad",
    "NpuFusedAdamP": "params lr betas eps weight_decay delta wd_ratio nesterov",
    "NpuFusedBertAdam": "params lr warmup t_total schedule b1 b2 e weight_decay max_grad_norm",
    "NpuFusedAdadelta": "params lr rho eps weight_decay",
    "NpuFusedLamb": "params lr betas eps weight_decay adam use_global_grad_norm",
    "NpuFusedRMSprop": "params lr alpha eps weight_decay momentum centered",
    "NpuFusedRMSpropTF": "params lr alpha eps weight_decay momentum centered decoupled_decay lr_in_momentum",
}
NAMES = [name for name in SIGNATURES if name.startswith("Fused")]
EXTRA = {"FusedSGD": {"lr": 0.1, "momentum": 0.9}}


def make(name: str, parameters: Any, **options: Any) -> Any:
    return getattr(apex_optimizers, name)(parameters, **{**EXTRA.get(name, {}), **options})


def agree(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=3e-5, atol=3e-6)


def gapped(values: list[torch.Tensor]) -> list[nn.Parameter]:
    """Parameters with gaps in their memory, which no fused kernel takes."""
    return [nn.Parameter(torch.zeros(*value.shape, 2)[..., 0].copy_(value)) for value in values]


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_have_apexs_order(name: str) -> None:
    parameters = inspect.signature(getattr(apex_optimizers, name)).parameters.values()
    positional = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert positional == SIGNATURES[name].split()
    assert getattr(amp.optim, name) is getattr(apex_optimizers, name)


@quick
@given(
    lr=rates,
    betas=betas,
    wd=decays,
    adam_w_mode=yes_no,
    bias_correction=yes_no,
    layout=st.sampled_from([parameters_of, gapped]),
)
def test_fused_adam(lr: float, betas: Any, wd: float, adam_w_mode: bool, bias_correction: bool, layout: Any) -> None:
    reference = plain.adam(lr, betas, 1e-8, wd, adam_w_mode, bias_correction)
    expected = plain.run(reference, start(), rounds(), by_round=True)
    parameters = layout(start())
    optimizer = apex_optimizers.FusedAdam(
        parameters, lr, bias_correction, betas, adam_w_mode=adam_w_mode, weight_decay=wd
    )
    agree(train(optimizer, parameters, rounds()), expected)
    assert optimizer.param_groups[0]["step"] == 4 and "step" not in optimizer.state[parameters[0]]


@quick
@given(
    lr=rates,
    momentum=st.sampled_from([0.0, 0.9]),
    dampening=st.sampled_from([0.0, 0.5]),
    wd=decays,
    nesterov=yes_no,
    wd_after=yes_no,
    layout=st.sampled_from([parameters_of, gapped]),
)
def test_fused_sgd(
    lr: float, momentum: float, dampening: float, wd: float, nesterov: bool, wd_after: bool, layout: Any
) -> None:
    nesterov = nesterov and momentum > 0 and dampening == 0
    reference = plain.sgd(lr, momentum, dampening, wd, nesterov, wd_after)
    parameters = layout(start())
    optimizer = apex_optimizers.FusedSGD(parameters, lr, momentum, dampening, wd, nesterov, wd_after)
    agree(train(optimizer, parameters, rounds()), plain.run(reference, start(), rounds()))


@quick
@given(lr=rates, wd=decays, decoupled=yes_no, layout=st.sampled_from([parameters_of, gapped]))
def test_fused_adagrad(lr: float, wd: float, decoupled: bool, layout: Any) -> None:
    parameters = layout(start())
    optimizer = apex_optimizers.FusedAdagrad(parameters, lr, 1e-10, wd, adagrad_w_mode=decoupled)
    expected = plain.run(plain.adagrad(lr, 1e-10, wd, decoupled), start(), rounds())
    agree(train(optimizer, parameters, rounds()), expected)


@quick
@given(
    lr=rates,
    betas=betas,
    wd=decays,
    clip=st.sampled_from([0.5, 1.0, 1e6]),
    nvlamb=yes_no,
    adam_w_mode=yes_no,
    grad_averaging=yes_no,
    bias_correction=yes_no,
    mixed=yes_no,
)
def test_fused_lamb(lr: float, betas: Any, wd: float, clip: float, nvlamb: bool, mixed: bool, **options: bool) -> None:
    reference = plain.lamb(lr, betas, 1e-6, wd, always_adapt=nvlamb, **options)
    parameters = parameters_of(start())
    kind = apex_optimizers.FusedMixedPrecisionLamb if mixed else apex_optimizers.FusedLAMB
    optimizer: Any = kind(
        parameters, lr, betas=betas, weight_decay=wd, max_grad_norm=clip, use_nvlamb=nvlamb, **options
    )
    agree(train(optimizer, parameters, rounds()), plain.run(reference, start(), rounds(), clip, by_round=True))


@quick
@given(
    lr=rates,
    betas=betas,
    wd=decays,
    norm_type=st.sampled_from([2, 0]),
    grad_averaging=yes_no,
    bias_correction=yes_no,
    reg_inside_moment=yes_no,
    init_zero=yes_no,
)
def test_fused_novograd(lr: float, betas: Any, wd: float, **options: Any) -> None:
    parameters = parameters_of(start())
    optimizer = apex_optimizers.FusedNovoGrad(parameters, lr, betas=betas, eps=1e-3, weight_decay=wd, **options)
    expected = plain.run(plain.novograd(lr, betas, 1e-3, wd, **options), start(), rounds(), by_round=True)
    agree(train(optimizer, parameters, rounds()), expected)


@pytest.mark.parametrize("name", NAMES)
def test_half_parameters_are_updated_in_float32(name: str) -> None:
    half, full = parameters_of(start(), torch.bfloat16), parameters_of([v.bfloat16().float() for v in start()])
    row = [[None if g is None else g.bfloat16().float() for g in r] for r in rounds(1)]
    optimizer = make(name, half)
    expected = train(make(name, full), full, row)
    train(optimizer, half, row)
    for parameter, wanted in zip(half, expected, strict=True):
        assert torch.equal(parameter, wanted.float().bfloat16())
    tensors = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    assert tensors and {t.dtype for t in tensors} == {torch.float32}
    again = make(name, half)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert {v.dtype for s in again.state.values() for v in s.values() if isinstance(v, torch.Tensor)} == {torch.float32}


@pytest.mark.parametrize("name", NAMES)
def test_resume_and_copies_are_exact(name: str) -> None:
    ours, theirs = parameters_of(start()), parameters_of(start())
    expected = train(make(name, ours), ours, rounds(6))
    first = make(name, theirs)
    train(first, theirs, rounds(6)[:3])
    resumed = make(name, theirs)
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    resumed, theirs = pickle.loads(pickle.dumps((resumed, theirs)))
    for a, b in zip(train(resumed, theirs, rounds(6)[3:]), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_o2_and_schedulers(name: str) -> None:
    amp.init("O2", dtype="bf16")
    model = amp.prepare_model(nn.Linear(3, 2))
    with torch.no_grad():
        model.weight.fill_(1.0)
    # Apex's bias correction makes NovoGrad begin slowly.
    options = {"bias_correction": False} if name == "FusedNovoGrad" else {}
    optimizer = make(name, model.parameters(), lr=4e-4, **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30, gamma=0.5)
    for _ in range(60):
        optimizer.zero_grad()
        amp.scaler.scale(model(torch.ones(1, 3)).float().sum()).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
        scheduler.step()
    assert (model.weight.float() < 1.0).all()
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_zero_grad_follows_set_grad_none_and_takes_torchs_argument(name: str) -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = make(name, [parameter])
    removes = name != "FusedSGD"  # Apex's defaults
    for argument, removed in (((), removes), ((True,), True), ((False,), False)):
        parameter.grad = torch.ones(2)
        optimizer.zero_grad(*argument)
        assert (parameter.grad is None) is removed
    if name != "FusedMixedPrecisionLamb":
        optimizer = make(name, [parameter], set_grad_none=not removes)
        parameter.grad = torch.ones(2)
        optimizer.zero_grad()
        assert (parameter.grad is None) is not removes


@pytest.mark.parametrize("name", ["FusedAdam", "FusedLAMB", "FusedNovoGrad", "FusedMixedPrecisionLamb"])
def test_amsgrad_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match=f"{name} got amsgrad=True; allowed: False"):
        make(name, [nn.Parameter(torch.ones(1))], amsgrad=True)


@pytest.mark.parametrize("name", NAMES)
def test_sparse_gradients_are_refused(name: str) -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match=f"{name} got a gradient of layout"):
        make(name, table.parameters()).step()


def test_fused_adam_equals_torchs_adamw_and_uses_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    kernel = torch._fused_adamw_
    monkeypatch.setattr(torch, "_fused_adamw_", lambda *a, **k: (calls.append(len(a[0])), kernel(*a, **k)))
    ours, theirs = parameters_of(start()), parameters_of(start())
    gradients = rounds(missing=False)
    actual = train(apex_optimizers.FusedAdam(ours, lr=0.1, weight_decay=0.1), ours, gradients)
    assert calls == [5] * 4
    expected = train(torch.optim.AdamW(theirs, lr=0.1, weight_decay=0.1, fused=True), theirs, gradients)
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_fused_adam_goes_on_from_torchs_state(kind: Any) -> None:
    """Also where torch has counted different numbers of steps for the parameters."""
    theirs = parameters_of(start())
    before = kind(theirs, lr=0.1, weight_decay=0.1)
    train(before, theirs, rounds())
    assert len({float(before.state[p]["step"]) for p in theirs}) > 1
    ours = parameters_of([p.detach() for p in theirs])
    optimizer = apex_optimizers.FusedAdam(ours, lr=1.0, adam_w_mode=kind is torch.optim.AdamW)
    optimizer.load_state_dict(copy.deepcopy(before.state_dict()))
    agree(train(optimizer, ours, rounds(seed=5)), train(before, theirs, rounds(seed=5)))


def apex_state(dtype: torch.dtype = torch.float32, **options: Any) -> dict[str, Any]:
    """A checkpoint of Apex's FusedAdam or FusedLAMB, after two steps."""
    generator = torch.Generator().manual_seed(3)
    state = {
        index: {
            "exp_avg": torch.randn(value.shape, generator=generator).to(dtype),
            "exp_avg_sq": torch.rand(value.shape, generator=generator).to(dtype),
        }
        for index, value in enumerate(start())
    }
    group = {"lr": 0.1, "bias_correction": True, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1, **options}
    return {"state": state, "param_groups": [{**group, "step": 2, "params": list(range(len(state)))}]}


@pytest.mark.parametrize("name", ["FusedAdam", "FusedLAMB"])
def test_checkpoints_of_apex_load(name: str) -> None:
    saved = apex_state(**({"grad_averaging": True, "max_grad_norm": 1.0} if name == "FusedLAMB" else {}))
    parameters = parameters_of(start())
    optimizer = make(name, parameters)
    optimizer.load_state_dict(copy.deepcopy(saved))
    row = rounds(1, missing=False)
    if name == "FusedAdam":
        reference = plain.adam(0.1, (0.9, 0.99), 1e-6, 0.1, True, True)
    else:
        reference = plain.lamb(0.1, (0.9, 0.99), 1e-6, 0.1, bias_correction=True, adam_w_mode=True,
                               grad_averaging=True, always_adapt=False)  # fmt: skip
    norm = sum(float(g.square().sum()) for g in row[0] if g is not None) ** 0.5 if name == "FusedLAMB" else 1.0
    expected = []
    for index, value in enumerate(start()):
        kept = saved["state"][index]
        state = {"m": kept["exp_avg"].double(), "v": kept["exp_avg_sq"].double()}
        gradient = row[0][index]
        assert gradient is not None
        expected.append(reference(state, value.double(), gradient.double() / max(norm, 1.0), 3))
    agree(train(optimizer, parameters, row), expected)
    assert optimizer.state_dict()["param_groups"][0]["step"] == 3


def test_novograd_states_have_apexs_layout_and_load_from_it() -> None:
    parameters = parameters_of(start())
    optimizer = apex_optimizers.FusedNovoGrad(parameters, eps=1e-3)
    train(optimizer, parameters, rounds(2))  # the fourth has no gradient yet
    saved = optimizer.state_dict()
    group = saved["param_groups"][0]
    assert [len(each) for each in group["exp_avg_sq"]] == [0, 4] and group["step"] == 2
    assert set(saved["state"][0]) == {"exp_avg"} and "norm" in optimizer.state[parameters[0]]
    saved["state"] = {key: value for key, value in saved["state"].items() if value}  # Apex has no empty ones
    again = apex_optimizers.FusedNovoGrad(parameters, eps=1e-3)
    again.load_state_dict(copy.deepcopy(saved))
    for index in (0, 1, 2, 4):
        assert torch.equal(again.state[parameters[index]]["norm"], optimizer.state[parameters[index]]["norm"])
    mixed = copy.deepcopy(saved)
    for index in (0, 2):  # as after training half parameters with Apex
        mixed["state"][index]["exp_avg"] = mixed["state"][index]["exp_avg"].half()
    mixed["param_groups"][0]["exp_avg_sq"] = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
    again.load_state_dict(mixed)
    assert [float(again.state[parameters[index]]["norm"]) for index in (0, 2, 1, 4)] == [1.0, 2.0, 3.0, 4.0]


@quick
@given(lr=rates, betas=betas, wd=decays, bias_correction=yes_no, eps_inside_sqrt=yes_no, new_name=yes_no)
def test_old_fused_adam(lr: float, betas: Any, wd: float, new_name: bool, **options: bool) -> None:
    kind: Any = apex_optimizers.FusedAdam if new_name else old_optimizers.FusedAdam
    parameters = parameters_of(start())
    optimizer = kind(
        parameters, lr, betas=betas, eps=1e-6, weight_decay=wd, **options, **({"use_mt": True} if new_name else {})
    )
    expected = plain.run(plain.old_adam(lr, betas, 1e-6, wd, **options), start(), rounds())
    agree(train(optimizer, parameters, rounds()), expected)


def test_old_step_takes_scaled_gradients_and_writes_copies() -> None:
    row = rounds(1, missing=False)[0]
    scaled = [None if g is None else (g * 16.0).half() for g in row]
    true = [[None if g is None else g.float() / 16.0 for g in scaled]]
    limit = 0.5
    norm = sum(float(g.square().sum()) for g in true[0] if g is not None) ** 0.5
    clipped = [[None if g is None else g / ((norm + 1e-6) / limit) for g in true[0]]]
    expected = plain.run(plain.old_adam(0.1, (0.9, 0.999), 1e-8, 0.1, bias_correction=False, eps_inside_sqrt=False),
                         start(), clipped)  # fmt: skip
    for given_norm in (True, False):
        parameters = parameters_of(start())
        copies = [p.detach().half() for p in parameters]
        optimizer = apex_optimizers.FusedAdam(
            parameters, lr=0.1, bias_correction=False, weight_decay=0.1, max_grad_norm=limit
        )
        norms = [norm * 16.0] if given_norm else None
        optimizer.step(grads=scaled, output_params=copies, scale=16.0, grad_norms=norms)
        agree([p.detach().double() for p in parameters], expected)
        assert all(torch.equal(c, p.detach().half()) for c, p in zip(copies, parameters, strict=True))


def test_old_fused_sgd_takes_gradients_by_group() -> None:
    parameters = parameters_of(start())
    copies = [p.detach().half() for p in parameters]
    optimizer = old_optimizers.FusedSGD([{"params": parameters[:2]}, {"params": parameters[2:]}], lr=0.1, momentum=0.9)
    for row in rounds(3, missing=False):
        scaled = [None if g is None else g * 4 for g in row]
        optimizer.step(grads=[scaled[:2], scaled[2:]], output_params=[copies[:2], copies[2:]], scale=4.0)
    expected = plain.run(plain.sgd(0.1, 0.9, 0, 0, False, False), start(), rounds(3, missing=False))
    agree([p.detach().double() for p in parameters], expected)
    assert all(torch.equal(c, p.detach().half()) for c, p in zip(copies, parameters, strict=True))


def test_fused_sgd_divides_by_the_most_recent_scale_once() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = apex_optimizers.FusedSGD([parameter], lr=1.0)
    optimizer.most_recent_scale = 4.0
    parameter.grad = torch.full((2,), 2.0)
    optimizer.step()
    assert torch.equal(parameter, torch.full((2,), 0.5)) and optimizer.most_recent_scale == 1.0
    assert torch.equal(parameter.grad, torch.full((2,), 2.0))


def test_a_required_learning_rate() -> None:
    for kind in (apex_optimizers.FusedSGD, apex_optimizers.NpuFusedBertAdam):
        with pytest.raises(ValueError, match="lr"):
            kind([nn.Parameter(torch.ones(1))])
        assert kind([{"params": [nn.Parameter(torch.ones(1))], "lr": 0.5}]).param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("name", ["FusedAdam", "FusedMixedPrecisionLamb"])
@pytest.mark.parametrize("unscaled", [False, True])
@pytest.mark.filterwarnings("ignore:GradScaler is going to stop:FutureWarning")
def test_a_grad_scaler_can_be_handed_to_the_step(name: str, unscaled: bool) -> None:
    options: dict[str, Any] = {"capturable": True} if name == "FusedAdam" else {}
    ours, theirs = parameters_of(start()), parameters_of(start())
    optimizer, reference = make(name, ours, lr=0.1, **options), make(name, theirs, lr=0.1)
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    gradients = rounds(3, missing=False)
    for number, row in enumerate([*gradients[:2], gradients[2], gradients[2]]):
        for parameter, gradient in zip(ours, row, strict=True):
            assert gradient is not None
            loss = (parameter * gradient).sum()
            scaler.scale(loss).backward()
        if number == 2:
            ours[1].grad = torch.full_like(ours[1], torch.inf)
        if unscaled:
            scaler.unscale_(optimizer)
        before = [p.detach().clone() for p in ours]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if number == 2:
            assert all(torch.equal(a, b) for a, b in zip(before, ours, strict=True))
    agree([p.detach().double() for p in ours], train(reference, theirs, gradients))
    assert int(optimizer.param_groups[0]["step"]) == 3 and scaler.get_scale() == 4.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:GradScaler is going to stop:FutureWarning")
def test_gradients_are_true_after_a_capturable_step_and_as_they_were_after_a_skip(dtype: torch.dtype) -> None:
    parameters = parameters_of(start(), dtype)
    optimizer = make("FusedAdam", parameters, capturable=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for overflow in (False, True):
        for parameter in parameters:
            scaler.scale(3 * parameter.sum()).backward()
        if overflow:
            parameters[0].grad = torch.full_like(parameters[0], torch.inf)
        before = [parameter.grad for parameter in parameters]
        scaler.step(optimizer)
        assert all(parameter.grad is gradient for parameter, gradient in zip(parameters, before, strict=True))
        values = [{*parameter.grad.flatten().tolist()} for parameter in parameters]
        assert values == ([{torch.inf}, *[{24.0}] * (len(values) - 1)] if overflow else [{3.0}] * len(values))
        optimizer.zero_grad()
        scaler.update()


def test_mixed_precision_lamb_keeps_float32_weights() -> None:
    values = [v.bfloat16().float() for v in start()]
    half, full = parameters_of(values, torch.bfloat16), parameters_of(values)
    gradients = [[None if g is None else g.bfloat16().float() for g in row] for row in rounds(10, missing=False)]
    optimizer = make("FusedMixedPrecisionLamb", half, lr=1e-4, reduced_precision_dtype=torch.bfloat16, step=3)
    reference = make("FusedMixedPrecisionLamb", full, lr=1e-4, step=3)
    train(optimizer, half, gradients)
    for parameter, wanted in zip(half, train(reference, full, gradients), strict=True):
        torch.testing.assert_close(optimizer.state[parameter]["master_param"].double(), wanted)
    assert int(optimizer.param_groups[0]["step"]) == 13


def test_capturable_adam_with_master_weights() -> None:
    parameters = parameters_of(start(), torch.float16)
    optimizer = apex_optimizers.FusedAdam(parameters, lr=1e-3, capturable=True, master_weights=True)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    train(optimizer, parameters, rounds())
    masters = optimizer.param_groups_master[0]["params"]
    assert all(torch.equal(m.half(), p) for m, p in zip(masters, parameters, strict=True))
    assert optimizer.param_groups[1]["lr"] is not optimizer.param_groups[0]["lr"]


def test_a_scaler_without_capturable_is_an_error() -> None:
    optimizer = apex_optimizers.FusedAdam([nn.Parameter(torch.ones(1))])
    with pytest.raises(ValueError, match="capturable=False"):
        optimizer.step(grad_scaler=torch.amp.GradScaler("cpu"))


def test_classes_are_found_under_apexs_module_names() -> None:
    from amp_runtime.apex.optimizers.fused_adam import FusedAdam
    from amp_runtime.apex.optimizers.fused_lamb import FusedLAMB

    assert FusedAdam is amp.optim.FusedAdam and FusedLAMB is amp.optim.FusedLAMB


@pytest.mark.parametrize("name", SIGNATURES)
def test_step_hooks_run_once(name: str) -> None:
    parameter = nn.Parameter(torch.ones(2, 2))
    options = {} if name in EXTRA else {"lr": 0.1}
    optimizer = make(name, [parameter], **options)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    parameter.grad = torch.ones(2, 2)
    optimizer.step()
    assert calls == ["before", "after"]
