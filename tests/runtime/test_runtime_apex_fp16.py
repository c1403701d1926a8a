"""Apex's fp16_utils and FP16_Optimizer."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from amp_runtime.apex import fp16_utils
from amp_runtime.apex.contrib.optimizers import FP16_Optimizer as FusedFP16Optimizer
from amp_runtime.apex.fp16_utils import FP16_Optimizer
from apex_scripts import batches, net
from torch import nn

INF = float("inf")
KINDS = [FP16_Optimizer, FusedFP16Optimizer]


def half_model() -> Any:
    return fp16_utils.convert_network(net(), torch.float16)


def wrapped(kind: Any, model: nn.Module, lr: float = 0.1, **options: Any) -> Any:
    return kind(torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9), verbose=False, **options)


def train(model: nn.Module, optimizer: Any, data: Any) -> list[float]:
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.half()).float(), y)
        optimizer.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def plain_losses(data: Any) -> list[float]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x, y in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def masters(optimizer: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]


def same(first: Any, second: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_star_import_gives_apexs_names() -> None:
    names: dict[str, Any] = {}
    exec("from amp_runtime.apex.fp16_utils import *", names)
    wanted = "FP16_Optimizer LossScaler DynamicLossScaler network_to_half prep_param_lists to_python_float tofp16"
    assert set(wanted.split()) <= set(names)


def test_old_import_paths() -> None:
    from amp_runtime.apex.contrib.optimizers.fp16_optimizer import FP16_Optimizer as second
    from amp_runtime.apex.fp16_utils.fp16_optimizer import FP16_Optimizer as third
    from amp_runtime.apex.fp16_utils.loss_scaler import DynamicLossScaler
    from amp_runtime.apex.optimizers import FP16_Optimizer as first

    assert first is second is FusedFP16Optimizer and third is FP16_Optimizer
    assert DynamicLossScaler is fp16_utils.DynamicLossScaler


# ---------------------------------------------------------------------- models by hand


def test_network_to_half_casts_inputs_and_all_but_batch_norm() -> None:
    model = fp16_utils.network_to_half(net())
    assert model[1].first.weight.dtype is torch.float16 and model[1].norm.weight.dtype is torch.float32
    assert model(batches(1)[0][0]).dtype is torch.float16
    assert next(iter(model.state_dict())).startswith("1.")
    assert fp16_utils.FP16Model(net())(batches(1)[0][0]).dtype is torch.float16
    layer = nn.Sequential(nn.Linear(2, 2))
    fp16_utils.convert_module(layer, torch.float16)
    assert layer[0].weight.dtype is torch.float32, "children are left alone"
    assert fp16_utils.to_python_float(torch.tensor([2.5])) == fp16_utils.to_python_float([2.5]) == 2.5


@pytest.mark.parametrize("flat", [True, False])
def test_masters_by_hand(flat: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).half()
    params, master = fp16_utils.prep_param_lists(model, flat_master=flat)
    assert len(params) == 4 and len(master) == (1 if flat else 4)
    before = [p.detach().float() for p in params]
    optimizer = torch.optim.SGD(master, lr=0.5)
    model(torch.ones(1, 3).half()).sum().backward()
    fp16_utils.model_grads_to_master_grads(params, master, flat_master=flat)
    assert all(m.grad is not None and m.grad.dtype is torch.float32 for m in master)
    optimizer.step()
    fp16_utils.master_params_to_model_params(params, master, flat_master=flat)
    for old, p in zip(before, params, strict=True):
        torch.testing.assert_close(p.detach().float(), old - 0.5 * p.grad.float(), rtol=1e-2, atol=1e-3)


def test_a_flat_master_needs_one_type() -> None:
    with pytest.raises(RuntimeError, match=r"torch.float16, torch.float32"):
        fp16_utils.prep_param_lists(half_model(), flat_master=True)


# ---------------------------------------------------------------------- FP16_Optimizer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"static_loss_scale": 128.0}, {"dynamic_loss_scale": True}])
def test_losses_follow_float32(kind: Any, options: Any) -> None:
    data = batches(4) * 3
    model = half_model()
    optimizer = wrapped(kind, model, **options)
    if options.get("dynamic_loss_scale"):
        optimizer.loss_scale = 256.0  # it begins so high that the first steps would be skipped
    found = train(model, optimizer, data)
    assert found[-1] < found[0] * 0.8
    assert found == pytest.approx(plain_losses(data), abs=0.02)
    assert [p.dtype for p in masters(optimizer)] == [torch.float32] * 6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"static_loss_scale": 64.0}, {"dynamic_loss_scale": True}])
def test_an_overflow_skips_the_step(kind: Any, options: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(6, 3).half()
    optimizer = wrapped(kind, model, **options)
    optimizer.verbose = True
    optimizer.loss_scale = 64.0
    before = masters(optimizer)
    optimizer.backward(model(batches(1)[0][0].half()).float().sum() * INF)
    assert optimizer.step() is None and optimizer.overflow and same(before, masters(optimizer))
    scale = 32.0 if options.get("dynamic_loss_scale") else 64.0
    assert optimizer.loss_scale == optimizer.loss_scaler.cur_scale == scale
    assert f"Attempted loss scale: 64.0, reducing to {scale}" in capsys.readouterr().out
    train(model, optimizer, batches(1))
    assert not optimizer.overflow and not same(before, masters(optimizer))


def test_the_dynamic_scale_grows_and_has_a_floor() -> None:
    model = nn.Linear(6, 3).half()
    optimizer = wrapped(
        FP16_Optimizer, model, lr=0.0, dynamic_loss_scale=True, dynamic_loss_args={"init_scale": 4.0, "scale_window": 2}
    )
    seen = []
    for _ in range(4):
        train(model, optimizer, batches(1))
        seen.append(optimizer.loss_scale)
    assert seen == [4.0, 8.0, 8.0, 16.0]
    for _ in range(8):
        optimizer.backward(model(batches(1)[0][0].half()).float().sum() * INF)
        optimizer.step()
    assert optimizer.loss_scale == 1.0


def test_several_backwards_before_the_masters_are_updated() -> None:
    model = nn.Sequential(nn.Linear(3, 1, bias=False)).half()
    model.add_module("scale", nn.Linear(1, 1, bias=False))  # a float32 part
    optimizer = wrapped(FP16_Optimizer, model, static_loss_scale=8.0)
    with torch.no_grad():
        model[0].weight.fill_(1.0), model[1].weight.fill_(1.0)

    def backward(**options: Any) -> None:
        optimizer.backward(model[1](model[0](torch.ones(1, 3).half()).float()).sum(), **options)

    backward(update_master_grads=False)
    backward(update_master_grads=False)
    optimizer.update_master_grads()
    expected = [[[2.0] * 3], [[6.0]]]
    assert [g.tolist() for group in optimizer.inspect_master_grad_data() for g in group] == expected
    backward()  # without zero_grad: all three passes, with their true values
    gradients = [g.tolist() for group in optimizer.inspect_master_grad_data() for g in group]
    assert gradients == [[[3.0] * 3], [[9.0]]]


def test_clipping_the_masters() -> None:
    model = nn.Linear(3, 1, bias=False).half()
    optimizer = wrapped(FP16_Optimizer, model, lr=1.0, static_loss_scale=8.0)
    before = masters(optimizer)[0]
    optimizer.backward(model(torch.full((1, 3), 10.0).half()).float().sum())
    assert optimizer.clip_master_grads(3**0.5).item() == pytest.approx(10 * 3**0.5)
    optimizer.step()
    torch.testing.assert_close(masters(optimizer)[0], before - 1.0)
    optimizer.backward(model(torch.ones(1, 3).half()).float().sum() * INF)
    assert optimizer.clip_master_grads(1.0) == -1 and optimizer.inspect_master_grad_data() is None


def test_closures() -> None:
    x, y = batches(1)[0]
    model = half_model()
    optimizer = wrapped(FP16_Optimizer, model, static_loss_scale=128.0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.half()).float(), y)
        optimizer.backward(loss)
        return loss

    losses = [optimizer.step(closure).item() for _ in range(10)]
    assert losses[-1] < losses[0]
    lbfgs = FP16_Optimizer(torch.optim.LBFGS(half_model().parameters(), lr=0.1), verbose=False)
    assert lbfgs.fp16_groups
    with pytest.raises(RuntimeError, match="dynamic_loss_scale"):
        wrapped(FP16_Optimizer, half_model(), dynamic_loss_scale=True).step(closure)
    with pytest.raises(RuntimeError, match="infinite or NaN"):
        optimizer.step(lambda: optimizer.backward(model(x.half()).float().sum() * INF))


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumes_exactly(kind: Any) -> None:
    data = batches(8)
    options = {"dynamic_loss_scale": True}
    model = half_model()
    optimizer = wrapped(kind, model, **options)
    optimizer.loss_scale = 256.0
    train(model, optimizer, data[:4])
    file = io.BytesIO()
    torch.save({"net": model.state_dict(), "opt": optimizer.state_dict()}, file)
    expected = train(model, optimizer, data[4:])
    final = masters(optimizer)
    file.seek(0)
    saved = torch.load(file)
    model = copy.deepcopy(half_model())
    optimizer = wrapped(kind, model, **options)
    model.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["opt"])
    assert optimizer.loss_scale == 256.0
    assert train(model, optimizer, data[4:]) == expected and same(final, masters(optimizer))


def test_state_dict_keys_are_apexs_and_its_pickled_scalers_load() -> None:
    optimizer = wrapped(FP16_Optimizer, half_model(), dynamic_loss_scale=True)
    state = optimizer.state_dict()
    assert set(state) == {
        "loss_scaler",
        "dynamic_loss_scale",
        "overflow",
        "first_closure_call_this_step",
        "optimizer_state_dict",
        "fp32_from_fp16",
    }
    state["loss_scaler"] = fp16_utils.DynamicLossScaler(init_scale=16.0)
    state["loss_scaler"].cur_iter = 7
    optimizer.load_state_dict(state)
    assert optimizer.loss_scale == 16.0 and optimizer.loss_scaler.cur_iter == 7
    fused = wrapped(FusedFP16Optimizer, half_model(), dynamic_loss_scale=True)
    assert {"cur_scale", "cur_iter", "fp32_groups", "optimizer_state_dict"} <= set(fused.state_dict())
    assert fused.cur_scale == fused.loss_scaler.cur_scale == 2.0**16
    fused.cur_scale = 4.0
    assert fused.loss_scale == 4.0


@pytest.mark.parametrize("kind", KINDS)
def test_schedulers_and_zero_grad(kind: Any) -> None:
    model = half_model()
    optimizer = wrapped(kind, model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    train(model, optimizer, batches(1))
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == optimizer.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    optimizer.zero_grad(set_grads_to_None=False)
    assert not model.first.weight.grad.any()
    optimizer.zero_grad(set_to_none=True)
    assert model.first.weight.grad is None
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2).half())]})
    assert optimizer.param_groups[1]["params"][0].dtype is torch.float32


def test_the_old_fused_optimizer_clips_inside_its_step() -> None:
    from amp_runtime.apex.contrib.optimizers import FusedAdam

    torch.manual_seed(0)
    model = nn.Linear(6, 3).half()
    optimizer = FusedFP16Optimizer(
        FusedAdam(model.parameters(), lr=0.05, bias_correction=False, max_grad_norm=1.0), dynamic_loss_scale=True
    )
    losses = train(model, optimizer, batches(1) * 20)
    assert losses[-1] < losses[0] and optimizer.fp32_groups[0][0].dtype is torch.float32


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match=r"torch\.float64"):
        wrapped(FP16_Optimizer, nn.Linear(1, 1).double())
    with pytest.raises(SystemError, match="dynamic loss scale args"):
        wrapped(FusedFP16Optimizer, half_model(), dynamic_loss_scale=True, dynamic_loss_args={})
