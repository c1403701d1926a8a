"""The layers and tensor operations with Apex's names."""

from __future__ import annotations

import inspect
import math
from typing import Any

import plain_optim as plain
import pytest
import torch
import torch.nn.functional as F
from amp_runtime.apex import RNN, amp_C, contrib, fused_dense, mlp, normalization, reparameterization
from amp_runtime.apex.contrib.clip_grad import clip_grad_norm_
from amp_runtime.apex.contrib.focal_loss import FocalLoss, focal_loss
from amp_runtime.apex.contrib.group_norm import GroupNorm
from amp_runtime.apex.contrib.layer_norm import FastLayerNorm
from amp_runtime.apex.contrib.xentropy import SoftmaxCrossEntropyLoss
from amp_runtime.apex.multi_tensor_apply import MultiTensorApply, multi_tensor_applier
from amp_runtime.apex.normalization import fused_layer_norm as fln
from torch import nn

HALF = [torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def gradients(loss: torch.Tensor, *tensors: torch.Tensor | None) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, [t for t in tensors if t is not None]))


# Norms


@pytest.mark.parametrize("shape", [4, (3, 4)])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_is_torchs(shape: Any, affine: bool) -> None:
    ours = normalization.FusedLayerNorm(shape, elementwise_affine=affine)
    theirs = nn.LayerNorm(shape, elementwise_affine=affine)
    if affine:
        nn.init.normal_(theirs.weight), nn.init.normal_(theirs.bias)
    ours.load_state_dict(theirs.state_dict())
    x, y = (torch.randn(2, 3, 4).requires_grad_() for _ in range(2))
    y.data.copy_(x.data)
    a, b = ours(x), theirs(y)
    torch.testing.assert_close(a, b)
    for one, other in zip(
        gradients(a.sin().sum(), x, ours.weight, ours.bias), gradients(b.sin().sum(), y, theirs.weight, theirs.bias),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, other)
    assert ours.eps == 1e-5 and "elementwise_affine" in repr(ours)


@pytest.mark.parametrize("affine", [True, False])
def test_rms_norm_divides_by_the_root_of_the_mean_square(affine: bool) -> None:
    ours = normalization.FusedRMSNorm((3, 4), elementwise_affine=affine)
    if affine:
        nn.init.normal_(ours.weight)
    x = torch.randn(2, 3, 4).requires_grad_()
    wanted = x / (x.square().mean((1, 2), keepdim=True) + 1e-5).sqrt() * (ours.weight if affine else 1)
    torch.testing.assert_close(ours(x), wanted)
    torch.testing.assert_close(gradients(ours(x).sin().sum(), x), gradients(wanted.sin().sum(), x))
    assert set(ours.state_dict()) == ({"weight"} if affine else set())


def test_functional_forms_have_apexs_arguments() -> None:
    expected = {
        "fused_layer_norm_affine": "input weight bias normalized_shape eps memory_efficient",
        "fused_layer_norm": "input normalized_shape eps memory_efficient",
        "mixed_dtype_fused_layer_norm_affine": "input weight bias normalized_shape eps memory_efficient",
        "fused_rms_norm_affine": "input weight normalized_shape eps memory_efficient",
        "fused_rms_norm": "input normalized_shape eps memory_efficient",
        "mixed_dtype_fused_rms_norm_affine": "input weight normalized_shape eps memory_efficient",
    }
    for name, arguments in expected.items():
        parameters = inspect.signature(getattr(fln, name)).parameters
        assert list(parameters) == arguments.split() and parameters["eps"].default == 1e-6
    x, weight, bias = torch.randn(2, 4) * 1e-3, torch.randn(4), torch.randn(4)
    torch.testing.assert_close(fln.fused_layer_norm(x, (4,)), F.layer_norm(x, (4,), eps=1e-6))
    torch.testing.assert_close(fln.fused_rms_norm(x, 4), F.rms_norm(x, (4,), eps=1e-6))
    applied = fln.FusedLayerNormAffineFunction.apply(x, weight, bias, (4,), 1e-6)
    torch.testing.assert_close(applied, F.layer_norm(x, (4,), weight, bias, 1e-6))
    applied = fln.FusedRMSNormAffineFunction.apply(x, weight, (4,), 1e-6, True)
    torch.testing.assert_close(applied, F.rms_norm(x, (4,), weight, 1e-6))


@pytest.mark.parametrize("dtype", HALF)
def test_result_types_of_norms(dtype: torch.dtype) -> None:
    half, full = torch.randn(2, 4).to(dtype), torch.randn(2, 4)
    for kind in (normalization.FusedLayerNorm, normalization.FusedRMSNorm):
        assert kind(4)(half).dtype == dtype
        assert kind(4).to(dtype)(half).dtype == dtype
    for mixed in (normalization.MixedFusedLayerNorm, normalization.MixedFusedRMSNorm):
        assert mixed(4)(half).dtype == torch.float32  # the parameters' type
        assert mixed(4).to(dtype)(full).dtype == dtype
        reference = mixed.__mro__[1](4)
        torch.testing.assert_close(mixed(4)(half), reference(half.float()))


@pytest.mark.parametrize("dtype", HALF)
def test_under_autocast_apply_casts_nothing(dtype: torch.dtype) -> None:
    x, weight, bias = torch.randn(2, 4) * 1e-3, torch.randn(4), torch.randn(4)
    with torch.autocast("cpu", dtype=dtype):
        applied = fln.FusedLayerNormAffineFunction.apply(x, weight, bias, (4,), 1e-6)
        assert fln.FusedRMSNormFunction.apply(x.to(dtype), (4,), 1e-6).dtype == dtype
        assert fln.FusedLayerNormAffineMixedDtypesFunction.apply(x.to(dtype), weight, bias, 4, 1e-6).dtype == x.dtype
        assert fln.fused_layer_norm_affine(x, weight, bias, (4,), 1e-6).dtype == dtype
    torch.testing.assert_close(applied, F.layer_norm(x, (4,), weight, bias, 1e-6))


@pytest.mark.parametrize("dtype", HALF)
def test_under_autocast_norms_return_its_type(dtype: torch.dtype) -> None:
    x = torch.randn(2, 4) * 100
    for layer in (normalization.FusedLayerNorm(4), normalization.MixedFusedLayerNorm(4), normalization.FusedRMSNorm(4),
                  FastLayerNorm(4)):  # fmt: skip
        with torch.autocast("cpu", dtype=dtype):
            result = layer(x)
        assert result.dtype == dtype
        torch.testing.assert_close(result.float(), layer(x), rtol=2e-2, atol=2e-2)
        result.float().sum().backward()
        assert layer.weight is not None and layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32


def test_mixed_norms_always_have_parameters() -> None:
    for kind in (normalization.MixedFusedLayerNorm, normalization.MixedFusedRMSNorm):
        with pytest.warns(UserWarning, match="elementwise_affine"):
            kind(4, elementwise_affine=True)
        with pytest.warns(UserWarning), pytest.raises(RuntimeError, match="elementwise_affine=False; allowed: True"):
            kind(4, elementwise_affine=False)
        with pytest.raises(TypeError, match="affine"):
            kind(4, affine=True)


def test_group_norm() -> None:
    x = torch.randn(2, 6, 3, 3)
    theirs = nn.GroupNorm(3, 6)
    nn.init.normal_(theirs.weight)
    for act in (None, "silu", "Swish"):
        ours = GroupNorm(3, 6, act=act)
        ours.load_state_dict(theirs.state_dict())
        wanted = theirs(x) if act is None else F.silu(theirs(x))
        torch.testing.assert_close(ours(x), wanted)
        torch.testing.assert_close(ours(x.to(memory_format=torch.channels_last)), wanted)
    assert GroupNorm(3, 6)(x.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="num_groups=4 and num_channels=6"):
        GroupNorm(4, 6)
    with pytest.raises(ValueError, match="act='relu'; allowed: None, 'silu', 'swish'"):
        GroupNorm(3, 6, act="relu")


# Linear layers


@pytest.mark.parametrize("activation", ["relu", "none", "sigmoid"])
@pytest.mark.parametrize("bias", [True, False])
def test_mlp_applies_the_activation_after_every_layer(activation: str, bias: bool) -> None:
    layer = mlp.MLP([4, 5, 3], bias=bias, activation=activation)
    names = {"weight_0", "weight_1"} | ({"bias_0", "bias_1"} if bias else set())
    assert set(layer.state_dict()) == names
    x = torch.randn(2, 4)
    function = {"relu": torch.relu, "none": lambda t: t, "sigmoid": torch.sigmoid}[activation]
    wanted = x
    for index in range(2):
        shift = getattr(layer, f"bias_{index}") if bias else None
        wanted = function(F.linear(wanted, getattr(layer, f"weight_{index}"), shift))
    torch.testing.assert_close(layer(x), wanted)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    again = mlp.MLP([4, 5, 3], bias=bias, activation=activation)
    again.load_state_dict(layer.state_dict())
    torch.testing.assert_close(again(x), wanted)


def test_mlp_refuses_other_activations() -> None:
    with pytest.raises(TypeError, match="activation='gelu'; allowed: 'none', 'relu', 'sigmoid'"):
        mlp.MLP([2, 2], activation="gelu")


def test_fused_dense() -> None:
    x = torch.randn(2, 5, 4)
    for bias in (True, False):
        layer = fused_dense.FusedDense(4, 3, bias)
        theirs = nn.Linear(4, 3, bias)
        layer.load_state_dict(theirs.state_dict())
        torch.testing.assert_close(layer(x), theirs(x))
    two = fused_dense.FusedDenseGeluDense(4, 6, 3)
    assert set(two.state_dict()) == {"weight1", "bias1", "weight2", "bias2"}
    hidden = F.gelu(F.linear(x, two.weight1, two.bias1), approximate="tanh")
    torch.testing.assert_close(two(x), F.linear(hidden, two.weight2, two.bias2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert two(x).dtype == torch.bfloat16
    assert all(torch.isfinite(p).all() for p in two.parameters()), "initialised"
    with pytest.raises(ValueError, match="bias=False; allowed: True"):
        fused_dense.FusedDenseGeluDense(4, 6, 3, bias=False)


# Losses


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_of_rows(smoothing: float) -> None:
    logits = torch.randn(4, 5).requires_grad_()
    labels = torch.tensor([1, 0, 4, 2])
    losses = SoftmaxCrossEntropyLoss.apply(logits, labels, smoothing)
    logs = logits.log_softmax(-1)
    wanted = -(1 - smoothing) * logs[range(4), labels] - smoothing * logs.mean(-1)
    wanted = torch.where(labels == 0, 0.0, wanted)  # 0 is the padding unless it is told otherwise
    torch.testing.assert_close(losses, wanted)
    torch.testing.assert_close(gradients(losses.sum(), logits), gradients(wanted.sum(), logits))
    assert SoftmaxCrossEntropyLoss.apply(logits, labels, smoothing, -100)[1] > 0
    assert SoftmaxCrossEntropyLoss.apply(logits.half(), labels, smoothing).dtype == torch.float16
    assert SoftmaxCrossEntropyLoss.apply(logits.half(), labels, smoothing, 0, True).dtype == torch.float32


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_focal_loss(smoothing: float) -> None:
    scores = torch.randn(6, 5).requires_grad_()
    targets = torch.tensor([0, 3, -1, -2, 2, -1])
    alpha, gamma = 0.25, 2.0
    total = torch.zeros(())
    for row, target in enumerate(targets.tolist()):
        for column in range(4 if target != -2 else 0):  # the fifth class is padding
            hit = column == target
            chance = scores[row, column].sigmoid()
            label = 1 - smoothing / 2 if hit else smoothing / 2
            entropy = -label * chance.log() - (1 - label) * (1 - chance).log()
            weight = alpha * (1 - chance) ** gamma if hit else (1 - alpha) * chance**gamma
            total = total + weight * entropy
    wanted = total / 3
    loss = focal_loss(scores, targets, torch.tensor([3.0]), 4, alpha, gamma, smoothing)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(gradients(loss, scores), gradients(wanted, scores))
    torch.testing.assert_close(FocalLoss.apply(scores, targets, torch.tensor(3.0), 4, alpha, gamma, smoothing), loss)


def test_clipping_is_torchs() -> None:
    assert clip_grad_norm_ is torch.nn.utils.clip_grad_norm_
    assert contrib.__doc__


# Operations on lists of tensors

SHAPES = [(3, 4), (5,), ()]


def tensors(seed: int, dtype: torch.dtype = torch.float32, positive: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=generator) for shape in SHAPES]
    return [(v.abs() if positive else v).to(dtype) for v in values]


def flag() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.int32)


def same(ours: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    tolerance = 2e-3 if ours[0].dtype == torch.float16 else 2e-2 if ours[0].dtype == torch.bfloat16 else 2e-5
    for one, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


def applied(op: Any, noop: torch.Tensor, lists: Any, *args: Any) -> Any:
    return multi_tensor_applier(op, noop, lists, *args)


def test_the_applier_passes_a_chunk_size() -> None:
    assert MultiTensorApply.available and multi_tensor_applier.available
    result = MultiTensorApply(7)(lambda *arguments: arguments, "flag", [["x"]], 1, 2)
    assert result == (7, "flag", [["x"]], 1, 2)


@pytest.mark.parametrize("source", [torch.float32, *HALF])
@pytest.mark.parametrize("target", [torch.float32, torch.float16])
def test_scale_and_axpby(source: torch.dtype, target: torch.dtype) -> None:
    xs, ys = tensors(0, source), tensors(1, source)
    outs, noop = [torch.empty(shape, dtype=target) for shape in SHAPES], flag()
    applied(amp_C.multi_tensor_scale, noop, [xs, outs], 0.5)
    same(outs, [x * 0.5 for x in xs])
    applied(amp_C.multi_tensor_axpby, noop, [xs, ys, outs], 2.0, -3.0, -1)
    same(outs, [2.0 * x.float() - 3.0 * y.float() for x, y in zip(xs, ys, strict=True)])
    assert noop.item() == 0


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_values_that_are_not_finite_set_the_flag(bad: float) -> None:
    xs, ys, outs = tensors(0), tensors(1), tensors(2)
    ys[1][2] = bad
    for op, lists, arguments, expected in [
        (amp_C.multi_tensor_scale, [ys, outs], (1.0,), 1),
        (amp_C.multi_tensor_axpby, [xs, ys, outs], (1.0, 1.0, 0), 0),
        (amp_C.multi_tensor_axpby, [xs, ys, outs], (1.0, 1.0, 1), 1),
        (amp_C.multi_tensor_axpby, [xs, ys, outs], (1.0, 1.0, -1), 1),
        (amp_C.multi_tensor_l2norm, [ys], (), 1),
        (amp_C.multi_tensor_unscale_l2norm, [ys], (torch.ones(1),), 1),
    ]:
        noop = flag()
        applied(op, noop, lists, *arguments)
        assert noop.item() == expected, op.__name__


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_norms(dtype: torch.dtype) -> None:
    xs = tensors(0, dtype)
    each = [math.sqrt(float(x.double().square().sum())) for x in xs]
    whole = math.sqrt(sum(one**2 for one in each))
    total, per_tensor = applied(amp_C.multi_tensor_l2norm, flag(), [xs], True)
    assert total.shape == (1,) and total.dtype == per_tensor.dtype == torch.float32
    assert total.item() == pytest.approx(whole) and per_tensor.tolist() == pytest.approx(each)
    assert applied(amp_C.multi_tensor_l2norm, flag(), [xs], False)[1].numel() == 0
    total, _ = applied(amp_C.multi_tensor_unscale_l2norm, flag(), [xs], torch.tensor([0.5]), False)
    assert total.item() == pytest.approx(whole / 2)


def test_half_norms_do_not_overflow() -> None:
    large = [torch.full((4,), 6e4, dtype=torch.float16)]
    total, _ = applied(amp_C.multi_tensor_l2norm, flag(), [large], False)
    assert total.item() == pytest.approx(1.2e5, rel=1e-3)


def stepped(step: plain.Step, ps: list[torch.Tensor], gs: list[torch.Tensor], states: list[dict[str, Any]],
            number: int = 3) -> list[torch.Tensor]:  # fmt: skip
    return [step(state, p.double(), g.double(), number) for p, g, state in zip(ps, gs, states, strict=True)]


def moments(*lists: list[torch.Tensor], names: str) -> list[dict[str, Any]]:
    keys = names.split()
    return [dict(zip(keys, [v.double() for v in row], strict=True)) for row in zip(*lists, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("mode", [0, 1])
def test_adam_operations(dtype: torch.dtype, mode: int) -> None:
    step = plain.adam(0.1, (0.9, 0.99), 1e-6, 0.1, bool(mode), True)

    def fresh() -> list[list[torch.Tensor]]:
        return [tensors(0, dtype), tensors(1, dtype), tensors(2), tensors(3, positive=True)]

    gs, ps, ms, vs = fresh()
    wanted = stepped(step, ps, gs, moments(ms, vs, names="m v"))
    applied(amp_C.multi_tensor_adam, flag(), [gs, ps, ms, vs], 0.1, 0.9, 0.99, 1e-6, 3, mode, 1, 0.1)
    same(ps, wanted)
    lr, number, inverse = torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32), torch.tensor([0.5])
    arguments = (lr, 0.9, 0.99, 1e-6, number, mode, 1, 0.1, inverse)
    gs, ps, ms, vs = fresh()
    doubled = [g * 2 for g in gs]
    applied(amp_C.multi_tensor_adam_capturable, flag(), [doubled, ps, ms, vs], *arguments)
    same(ps, wanted)
    assert all(torch.equal(a, b) for a, b in zip(doubled, gs, strict=True)), "Apex's kernel leaves them unscaled"
    gs, ps, ms, vs = fresh()
    doubled = [g * 2 for g in gs]
    masters = [p.float() for p in ps]
    applied(amp_C.multi_tensor_adam_capturable_master, flag(), [doubled, ps, ms, vs, masters], *arguments)
    same(masters, wanted)
    assert all(torch.equal(p, m.to(dtype)) for p, m in zip(ps, masters, strict=True))
    before = [p.clone() for p in ps]
    skipping = torch.ones(1, dtype=torch.int32)
    applied(amp_C.multi_tensor_adam_capturable, skipping, [doubled, ps, ms, vs], *arguments)
    applied(amp_C.multi_tensor_adam_capturable_master, skipping, [doubled, ps, ms, vs, masters], *arguments)
    assert all(torch.equal(a, b) for a, b in zip(before, ps, strict=True))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("wd_after", [True, False])
def test_sgd_operation(first: bool, wd_after: bool) -> None:
    gs, ps, vs = tensors(0), tensors(1), tensors(2)
    states: list[dict[str, Any]] = [{} for _ in ps] if first else moments(vs, names="v")
    wanted = stepped(plain.sgd(0.1, 0.9, 0.5, 0.1, False, wd_after), ps, [g / 4 for g in gs], states)
    halves = [torch.empty_like(p, dtype=torch.float16) for p in ps]
    arguments = (0.1, 0.9, 0.5, 0.1, False, first, wd_after, 0.25)
    applied(amp_C.multi_tensor_sgd, flag(), [gs, ps, vs, halves], *arguments)
    same(ps, wanted)
    assert all(torch.equal(h, p.half()) for h, p in zip(halves, ps, strict=True))
    before = [p.clone() for p in ps]
    applied(amp_C.multi_tensor_sgd, torch.ones(1, dtype=torch.int32), [gs, ps, vs], *arguments)
    assert all(torch.equal(a, b) for a, b in zip(before, ps, strict=True))


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("norm_type", [2, 0])
def test_novograd_operation(mode: int, norm_type: int) -> None:
    gs, ps, ms, norms = tensors(0), tensors(1), tensors(2), torch.tensor([1.0, 2.0, 3.0])
    step = plain.novograd(0.1, (0.9, 0.99), 1e-6, 0.1, grad_averaging=True, bias_correction=True,
                          reg_inside_moment=mode == 0, init_zero=False, norm_type=norm_type)  # fmt: skip
    states = [{"m": m.double(), "n": float(n)} for m, n in zip(ms, norms, strict=True)]
    wanted = stepped(step, ps, gs, states)
    applied(
        amp_C.multi_tensor_novograd, flag(), [gs, ps, ms], norms, 0.1, 0.9, 0.99, 1e-6, 3, 1, 0.1, 1, mode, norm_type
    )
    same(ps, wanted)
    assert norms.tolist() == pytest.approx([state["n"] for state in states])


@pytest.mark.parametrize("nvlamb", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_two_halves_of_lamb_are_one_step(nvlamb: bool, decay: float) -> None:
    gs, ps, ms, vs = tensors(0), tensors(1), tensors(2), tensors(3, positive=True)
    step = plain.lamb(0.1, (0.9, 0.99), 1e-6, decay, bias_correction=True, adam_w_mode=True, grad_averaging=True,
                      always_adapt=nvlamb)  # fmt: skip
    wanted = stepped(step, ps, [g / 4 for g in gs], moments(ms, vs, names="m v"))
    updates = [torch.zeros_like(p) for p in ps]
    norms = torch.stack([p.norm() for p in ps])
    applied(amp_C.multi_tensor_lamb_stage1_cuda, flag(), [gs, ps, ms, vs, updates], torch.full((len(ps),), decay), 2,
            0.9, 0.99, 1e-6, torch.tensor([2.0]), 0.5)  # fmt: skip
    applied(amp_C.multi_tensor_lamb_stage2_cuda, flag(), [ps, updates], norms,
            torch.stack([u.norm() for u in updates]), 0.1, decay, nvlamb)  # fmt: skip
    same(ps, wanted)


def test_a_function_of_the_scripts_own_may_wrap_mlps() -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(*args):
            return mlp.MlpFunction.forward(*args)

        @staticmethod
        def backward(*args):
            return mlp.MlpFunction.backward(*args)

    layer = mlp.MLP([4, 5, 3])
    x = torch.randn(6, 4, requires_grad=True)
    inputs = [x, *layer.weights, *layer.biases]
    expected = torch.autograd.grad(layer(x).square().sum(), inputs)
    output = Own.apply(layer.bias, layer.activation, *inputs)
    torch.testing.assert_close(output, layer(x))
    torch.testing.assert_close(torch.autograd.grad(output.square().sum(), inputs), expected)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("nvlamb", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lamb_operation(mode: int, nvlamb: bool, decay: float) -> None:
    gs, ps, ms, vs = tensors(0), tensors(1), tensors(2), tensors(3, positive=True)
    step = plain.lamb(0.1, (0.9, 0.99), 1e-6, decay, bias_correction=True, adam_w_mode=mode == 1, grad_averaging=False,
                      always_adapt=nvlamb)  # fmt: skip
    wanted = stepped(step, ps, [g / 4 for g in gs], moments(ms, vs, names="m v"))
    applied(amp_C.multi_tensor_lamb, flag(), [gs, ps, ms, vs], 0.1, 0.9, 0.99, 1e-6, 3, 1, decay, 0, mode,
            torch.tensor([2.0]), 0.5, nvlamb)  # fmt: skip
    same(ps, wanted)


def test_a_scale_with_hysteresis() -> None:
    scale, growth, patience = torch.tensor(8.0), torch.tensor(0, dtype=torch.int32), torch.tensor(2, dtype=torch.int32)
    seen = []
    for found in (1.0, 1.0, 1.0, 0.0, 0.0, 1.0):
        amp_C.update_scale_hysteresis(scale, growth, patience, torch.tensor(found), 2.0, 0.5, 2, 2)
        seen.append((scale.item(), growth.item(), patience.item()))
    assert seen == [(8, 0, 1), (4, 0, 0), (2, 0, -1), (2, 1, 2), (4, 0, 2), (4, 0, 1)]


# Weight norm


@pytest.mark.parametrize("dim", [0, 1, -1, None])
@pytest.mark.parametrize("hook_child", [True, False])
def test_weight_norm(dim: int | None, hook_child: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    x, weight = torch.randn(4, 3), model[0].weight.detach().clone()
    before = model(x)
    reparameterization.apply_weight_norm(model, "0.weight", dim, hook_child)
    assert {"0.weight_g", "0.weight_v", "0.bias"} < set(model.state_dict()) and "0.weight" not in model.state_dict()
    assert model[0].weight_g.shape == {0: (4, 1), 1: (1, 3), -1: (1, 3), None: ()}[dim]
    holder = model[0] if hook_child else model
    assert len(holder._forward_pre_hooks) == 1
    torch.testing.assert_close(model(x), before)
    with torch.no_grad():
        model[0].weight_g.mul_(2)
    output = model(x)
    torch.testing.assert_close(output, model[1](F.linear(x, 2 * weight, model[0].bias)))
    output.sum().backward()
    assert model[0].weight_g.grad is not None and model[0].weight_v.grad is not None
    reparameterization.remove_weight_norm(holder, "weight" if hook_child else "0.weight")
    assert isinstance(model[0].weight, nn.Parameter) and "0.weight_g" not in model.state_dict()
    torch.testing.assert_close(model(x), output)
    assert not holder._forward_pre_hooks
    with pytest.raises(ValueError, match=r"found no '.*weight' with weight norm"):
        reparameterization.remove_weight_norm(holder, "weight" if hook_child else "0.weight")


def test_weight_norm_of_all_weights_but_embeddings() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.LSTM(3, 4), nn.LayerNorm(4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    reparameterization.apply_weight_norm(model)
    names = set(model.state_dict())
    assert "0.weight" in names and "2.weight" in names and "1.bias_ih_l0" in names
    assert {"1.weight_ih_l0_g", "1.weight_hh_l0_v"} < names and "1.weight_ih_l0" not in names
    reparameterization.remove_weight_norm(model)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name])


# Recurrent layers


def with_torchs_weights(ours: Any, theirs: nn.Module, layers: int) -> None:
    state = theirs.state_dict()
    for index in range(layers):
        for key in ("w_ih", "w_hh", "b_ih", "b_hh"):
            name = {"w": "weight", "b": "bias"}[key[0]] + key[1:]
            getattr(ours.rnns[index], key).data.copy_(state[f"{name}_l{index}"])


@pytest.mark.parametrize(("name", "theirs"), [("LSTM", nn.LSTM), ("GRU", nn.GRU), ("Tanh", nn.RNN)])
def test_recurrent_layers_are_torchs(name: str, theirs: Any) -> None:
    reference = theirs(3, 4, 2)
    ours = getattr(RNN, name)(3, 4, 2)
    with_torchs_weights(ours, reference, 2)
    assert "rnns.1.w_hh" in ours.state_dict()
    x = torch.randn(5, 2, 3)
    output, hidden = ours(x)
    wanted, last = reference(x)
    torch.testing.assert_close(output, wanted)
    for one, other in zip(hidden, last if name == "LSTM" else [last], strict=True):
        torch.testing.assert_close(one, other)
    again, _ = ours(x)  # goes on from its hidden state
    torch.testing.assert_close(again, reference(x, last)[0])
    ours.detach_hidden()
    ours.reset_hidden(2)
    torch.testing.assert_close(ours(x)[0], wanted)


def test_both_directions_and_collected_states() -> None:
    layers = RNN.GRU(3, 4, 2, bidirectional=True)
    x = torch.randn(5, 2, 3)
    output, hidden = layers(x)
    layers.reset_hidden(2)
    assert output.shape == (5, 2, 8) and [h.shape for h in hidden] == [(2, 2, 8)]
    assert {"fwd.rnns.0.w_ih", "bckwrd.rnns.1.b_hh"} < set(layers.state_dict())
    with_reversed = RNN.GRU(3, 4, 2)
    with_reversed.load_state_dict(layers.bckwrd.state_dict())
    torch.testing.assert_close(output[..., 4:], with_reversed(x.flip(0))[0].flip(0))
    torch.testing.assert_close(hidden[0][..., 4:], torch.stack([cell.hidden[0] for cell in with_reversed.rnns]))
    _, collected = RNN.LSTM(3, 4, 2)(x, collect_hidden=True)
    assert len(collected) == 2 and len(collected[0]) == 5 and collected[0][0].shape == (2, 2, 4)


def test_projected_and_multiplicative_layers() -> None:
    projected = RNN.LSTM(3, 4, 1, output_size=2)
    output, hidden = projected(torch.randn(5, 2, 3))
    assert output.shape == (5, 2, 2) and [h.shape for h in hidden] == [(1, 2, 2), (1, 2, 4)]
    layer = RNN.mLSTM(3, 4, 1)
    cell = layer.rnns[0]
    x = torch.randn(1, 2, 3)
    layer(x)
    last, state = (h.detach() for h in cell.hidden)
    output, _ = layer(x)
    product = (x[0] @ cell.w_mih.t()) * (last @ cell.w_mhh.t())
    gates = x[0] @ cell.w_ih.t() + cell.b_ih + product @ cell.w_hh.t() + cell.b_hh
    i, f, g, o = gates.chunk(4, 1)
    wanted = o.sigmoid() * (f.sigmoid() * state + i.sigmoid() * g.tanh()).tanh()
    torch.testing.assert_close(output[0], wanted)
    relu = RNN.ReLU(3, 4, 1)
    assert (relu(x)[0] >= 0).all()


def test_hidden_states_that_are_missing_cannot_be_detached() -> None:
    with pytest.raises(RuntimeError, match="no hidden state"):
        RNN.LSTM(3, 4, 1).detach_hidden()
