"""The op policy: autocast on the CPU casts as on CUDA, or as Apex did, and lists and regions change that."""

from __future__ import annotations

import functools
import threading
from contextlib import ExitStack
from typing import Any

import amp_runtime as amp
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from properties import examples
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

HALF, FLOAT = torch.bfloat16, torch.float32

# What autocast on CUDA returns for half and for float32 arguments: float32, half, or the type that it got.
# m is (4, 4), b (4, 4, 4), v (4,), i four indices.
FLOAT_ON_CUDA = """
m.acos()  torch.asin(m)  m.cosh()  m.erfinv()  m.exp()  torch.exp(m)  m.expm1()  m.log()  torch.log10(m)  m.log1p()
m.log2()  m.reciprocal()  m.rsqrt()  m.sinh()  m.tan()  torch.square(m)  m ** 2  m.pow(2)  torch.pow(m, 2)  2**m  1 / m
m.sum()  m.sum(0)  torch.sum(m, 1)  m.prod()  m.cumsum(0)  m.cumprod(0)  m.logsumexp(0)  m.norm()  torch.norm(m, dim=0)
torch.linalg.norm(m)  torch.linalg.vector_norm(m)  torch.linalg.matrix_norm(m)  torch.dist(m, m)  torch.cdist(m, m)
F.pdist(m)  m.renorm(1, 0, 5.0)  torch.trapezoid(m)  F.normalize(m)  F.cosine_similarity(m, m)
F.pairwise_distance(m, m)  m.softmax(-1)  torch.softmax(m, -1)  F.softmax(m, -1)  F.softmin(m, -1)  m.log_softmax(-1)
F.log_softmax(m, -1)  F.softplus(m)  F.layer_norm(m, (4,))  F.group_norm(b, 2)  F.rms_norm(m, (4,))
F.local_response_norm(b, 2)  F.interpolate(b, scale_factor=2.0)  F.mse_loss(m, m)  F.l1_loss(m, m)
F.smooth_l1_loss(m, m)  F.huber_loss(m, m)  F.kl_div(m, m)  F.cross_entropy(m, i)  F.nll_loss(m, i)
F.poisson_nll_loss(m, m)  F.soft_margin_loss(m, m)  F.multi_margin_loss(m, i)  F.margin_ranking_loss(v, v, v)
F.hinge_embedding_loss(m, m)  F.triplet_margin_loss(m, m, m)  F.cosine_embedding_loss(m, m, v)
F.multilabel_soft_margin_loss(m, m)  F.binary_cross_entropy_with_logits(m, m)  m / m.sum(-1, keepdim=True)
(m - m.mean()).pow(2).mean()
F.multi_head_attention_forward(b, b, b, 4, 1, torch.cat([m, m, m]), None, None, None, False, 0.0, m, None)[1]
"""
HALF_ON_CUDA = """
m @ m  torch.mm(m, m)  m.mv(v)  torch.addmv(v, m, v)  torch.addmm(m, m, m)  torch.addr(m, v, v)  b.bmm(b)
torch.baddbmm(b, b, b)  torch.addbmm(m, b, b)  torch.chain_matmul(m, m)  torch.linalg.multi_dot([m, m])
torch.linalg.vecdot(v, v)  torch.einsum("ij,ij->ij", m, m)  F.linear(m, m)  F.conv1d(b, b)  F.conv2d(b[None], b[None])
F.conv_transpose1d(b, b)  F.prelu(m, v)  F.scaled_dot_product_attention(b, b, b)  nn.GRU(4, 4)(b.float())[0]
nn.RNN(4, 4)(b.float())[0]  nn.LSTM(4, 4)(b.float())[0]  nn.GRUCell(4, 4)(m.float())  nn.RNNCell(4, 4)(m.float())
nn.LSTMCell(4, 4)(m.float())[1]
"""
OWN_ON_CUDA = """
torch.addcdiv(m, m, m)  torch.addcmul(m, m, m)  torch.atan2(m, m)  torch.dot(v, v)  torch.vdot(v, v)
torch.tensordot(m, m)  F.bilinear(m, m, b)  m.scatter_add(0, i[None], m)  torch.index_put(m, (i,), v)  m.mean()  m.var()
m.std()  m.sqrt()  m.sigmoid()  m.tanh()  F.gelu(m)  F.silu(m)  m.exp2()  m * m  m + m  m / 2  m - m.mean()  m.max()
m.clamp(0, 1)  m.exp_()  m.pow_(2)  torch.cat([m, m])  torch.stack([m, m])  F.pad(b, (1, 1), "reflect")
F.pad(b, (1, 1), "replicate")
F.max_pool3d(b[None], 1)  F.avg_pool3d(b[None], 1)  F.adaptive_avg_pool3d(b[None], 1)  F.max_pool2d(b, 1)
F.avg_pool2d(b, 1)  m.trace()  F.dropout(m, 0.5)  F.embedding(i, m)  m.sum(dtype=m.dtype)  m.softmax(-1, m.dtype)
F.softmax(m, -1, dtype=m.dtype)  F.interpolate(b, size=2, mode="area")
"""
FLOAT_WITH_APEX = """
F.gelu(m)  m.std()  torch.var(m)  F.local_response_norm(b, 2)  F.normalize(m)  m.cpu()
F.grid_sample(b[None], b[None, ..., :2])  F.multilabel_soft_margin_loss(m, m)  m.exp()  F.softmax(m, -1)  m ** 2
2**m  1 / m  m.sum()  m.norm()  F.layer_norm(m, (4,))
F.ctc_loss(b.log_softmax(-1), i[None].expand(4, 4)[:, :1], torch.full((4,), 4), torch.ones(4, dtype=torch.long))
"""
# What is half and what is float32 among the arguments that meet here: the widest type comes out.
WIDEST = """
torch.addcdiv(h, f, h)  torch.addcmul(f, h, h)  torch.atan2(h, f)  torch.dot(h[0], f[0])  torch.tensordot(h, f)
torch.cross(h[:3, :3], f[:3, :3], dim=0)  F.bilinear(h, f, f[None])  torch.index_put(f, (i,), h[0])
F.grid_sample(h[None, None], f[None, :, :2, None].expand(1, 4, 2, 2))
"""
WIDEST_WITH_APEX = (
    WIDEST
    + """
h + f.sum()  h * f.mean()  h.div(f.mean())  h - f.mean()  torch.cat([h, f])  torch.stack([f, h])
"""
)


def cases(text: str) -> list[str]:
    return [case for line in text.splitlines() for case in line.split("  ") if case]


def names(dtype: torch.dtype) -> dict[str, Any]:
    torch.manual_seed(0)
    matrix, batch = torch.rand(4, 4) * 0.8 + 0.1, torch.rand(4, 4, 4)
    index = torch.arange(4)
    m, b = matrix.to(dtype), batch.to(dtype)
    return {"m": m, "b": b, "v": m[0].clone(), "i": index, "h": matrix.to(HALF), "f": matrix}


def result(case: str, dtype: torch.dtype = FLOAT, **values: Any) -> Any:
    return eval(case, {"torch": torch, "F": F, "nn": nn, **names(dtype), **values})


@functools.cache
def lacking_in_bfloat16() -> set[str]:
    """What torch's own autocast cannot run on this processor, to be asked before ``amp.init``: LSTMs need AVX-512."""
    missing = set()
    for case in cases(HALF_ON_CUDA):
        try:
            with torch.autocast("cpu", HALF):
                result(case)
        except RuntimeError:
            missing.add(case)
    assert missing <= {"nn.LSTM(4, 4)(b.float())[0]"}
    return missing


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("text", "from_half", "from_float"),
    [(FLOAT_ON_CUDA, FLOAT, FLOAT), (HALF_ON_CUDA, HALF, HALF), (OWN_ON_CUDA, HALF, FLOAT)],
)
def test_on_the_cpu_every_operation_returns_the_type_of_cuda(
    name: Any, text: str, from_half: torch.dtype, from_float: torch.dtype
) -> None:
    lacking = lacking_in_bfloat16()
    amp.init("O1", dtype=name)
    half = torch.bfloat16 if name == "bf16" else torch.float16
    for case in cases(text):
        if name == "fp16" and case == "F.pdist(m)":
            continue  # in float32 all the same, but tested once
        with amp.autocast():
            got = result(case, half).dtype, result(case, FLOAT).dtype
        missing = half is HALF and case in lacking
        expected = (FLOAT, FLOAT) if missing else (from_half, from_float)
        assert got == tuple(half if dtype is HALF else FLOAT for dtype in expected), case


@pytest.mark.filterwarnings("ignore")
def test_the_table_of_this_test_is_that_of_autocast_on_cuda() -> None:
    """Fake tensors on CUDA go through the real autocast of CUDA, also where there is none."""
    subclasses = pytest.importorskip("torch._subclasses.fake_tensor")
    fake = subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    expected = {case: (FLOAT, FLOAT) for case in cases(FLOAT_ON_CUDA)}
    expected |= {case: (HALF, HALF) for case in cases(HALF_ON_CUDA)}
    expected |= {case: (HALF, FLOAT) for case in cases(OWN_ON_CUDA)}
    compared = 0
    for case, dtypes in expected.items():
        for dtype, wanted in zip((HALF, FLOAT), dtypes, strict=True):
            tensors = {
                name: subclasses.FakeTensor(fake, tensor.to("meta"), torch.device("cuda:0"))
                for name, tensor in names(dtype).items()
            }
            torch.set_autocast_dtype("cuda", HALF)
            torch.set_autocast_enabled("cuda", True)
            try:
                with fake:
                    got = result(case, dtype, **tensors).dtype
            except (RuntimeError, AssertionError):  # a kernel that this build of torch does not even describe
                continue
            finally:
                torch.set_autocast_enabled("cuda", False)
                torch.clear_autocast_cache()
            assert got is wanted, case
            compared += 1
    assert compared > 200


@pytest.mark.filterwarnings("ignore")
def test_apex_policy_casts_as_its_lists_say() -> None:
    lacking = lacking_in_bfloat16()
    amp.init("O1", dtype="bf16", cast_policy="apex")
    with amp.autocast():
        for case in cases(FLOAT_WITH_APEX):
            assert result(case, HALF).dtype is FLOAT, case
        for case in cases(HALF_ON_CUDA):
            assert result(case).dtype is (FLOAT if case in lacking else HALF), case
        for case in cases(WIDEST_WITH_APEX):
            assert result(case).dtype is FLOAT, case
        half = torch.ones(2, dtype=HALF)
        assert torch.equal(half.eq(torch.ones(2)), torch.ones(2, dtype=torch.bool))
        half **= 2
        assert half.dtype is FLOAT, "Apex casts the operator, which gives another tensor"
        half = torch.ones(2, dtype=HALF)
        half += torch.ones(2)
        assert half.dtype is HALF
        with pytest.raises(NotImplementedError, match=r"exp_ .*use exp without"):
            half.exp_()
        assert torch.ones(2).exp_().dtype is FLOAT
        with pytest.raises(NotImplementedError, match="binary_cross_entropy"):
            F.binary_cross_entropy(half, half)
        assert F.binary_cross_entropy(torch.ones(2), torch.ones(2)) == 0
    with amp.autocast(custom_black_list={"binary_cross_entropy"}):
        assert F.binary_cross_entropy(torch.ones(2, dtype=HALF), torch.ones(2, dtype=HALF)).dtype is FLOAT


@pytest.mark.filterwarnings("ignore")
def test_mixed_types_are_promoted() -> None:
    amp.init("O1", dtype="bf16")
    with amp.autocast():
        for case in cases(WIDEST):
            assert result(case).dtype is FLOAT, case
        assert result("h * f.mean()").dtype is HALF, "a number's worth of float32 does not widen, as on CUDA"


def test_a_probability_loss_raises_as_on_cuda() -> None:
    amp.init("O1", dtype="bf16")
    p = torch.full((2,), 0.5)
    with amp.autocast():
        for loss in (F.binary_cross_entropy, nn.BCELoss()):
            with pytest.raises(RuntimeError, match=r"unsafe in mixed precision.*amp\.float_function"):
                loss(p, p)
        assert amp.float_function(nn.BCELoss())(p, p) > 0
        with torch.autocast("cpu", enabled=False):
            assert F.binary_cross_entropy(p, p) > 0
    assert F.binary_cross_entropy(p, p) > 0


def test_values_and_gradients_are_those_of_float32_operations() -> None:
    amp.init("O1", dtype="bf16")
    x = torch.randn(5, 7).to(HALF).requires_grad_()
    with amp.autocast():
        y = F.softmax(x, -1)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    other = x.detach().float().requires_grad_()
    expected = torch.softmax(other, -1)
    assert torch.equal(y, expected)
    assert torch.equal(gradient, torch.autograd.grad(expected.square().sum(), other)[0].to(HALF))


def test_on_cuda_the_default_adds_no_mode() -> None:
    from amp_runtime._precision import policy
    from amp_runtime._precision.policy import Lists

    none = policy.begin("cuda", (Lists(), Lists()), None)
    assert none.mode is None and not torch.overrides._get_current_function_mode_stack()
    policy.end(none)
    for layers, name in (((Lists(half=frozenset({"softmax"})),), None), ((Lists(),), "apex")):
        some = policy.begin("cuda", layers, name)  # type: ignore[arg-type]
        assert some.mode is not None
        policy.end(some)
    assert not torch.overrides._get_current_function_mode_stack()


@pytest.mark.parametrize("prefix", ["", "torch.", "F.", "torch.nn.functional.", "Tensor."])
def test_lists_cover_the_function_the_method_and_the_operator(prefix: str) -> None:
    amp.init("O1", dtype="bf16")
    m = torch.rand(3, 3)
    h = m.to(HALF)
    white, black = {prefix + "softmax", prefix + "pow"}, [prefix + "matmul", prefix + "tanh"]
    with amp.autocast(custom_white_list=white, custom_black_list=black):
        for y in (F.softmax(m, -1), torch.softmax(m, -1), m.softmax(-1), m**2, 2**m, m.pow(2), torch.pow(m, 2)):
            assert y.dtype is HALF
        for y in (h @ h, h.matmul(h), torch.matmul(h, h), h.__rmatmul__(h), h.tanh(), F.tanh(h), nn.Tanh()(h)):
            assert y.dtype is FLOAT
        assert torch.mm(m, m).dtype is HALF, "another operation"
        assert F.gumbel_softmax(m).dtype is HALF, "inside a function written in Python too"


def test_in_place_forms_compute_in_the_listed_type_and_keep_their_tensor() -> None:
    amp.init("O1", dtype="bf16")
    x = torch.full((3,), 1.003)
    h = torch.full((3,), 0.5, dtype=HALF)
    with amp.autocast(custom_white_list={"exp", "add"}, custom_black_list={"tanh", "relu", "pow"}):
        y = x.clone()
        assert y.exp_() is y and y.dtype is FLOAT
        assert torch.equal(y, x.to(HALF).exp().float())
        z = x.clone()
        z += 1
        assert z.dtype is FLOAT and torch.equal(z, (x.to(HALF) + 1).float())
        t = h.clone()
        assert t.tanh_() is t and torch.equal(t, h.float().tanh().to(HALF))
        t = -h
        assert F.relu(t, inplace=True) is t and t.dtype is HALF and t.sum().item() == 0
        assert F.relu(h).dtype is FLOAT and nn.ReLU()(h).dtype is FLOAT
        t = h.clone()
        t **= 2
        assert t.dtype is HALF
        out = torch.empty(3, dtype=HALF)
        torch.tanh(h, out=out)
        assert torch.equal(out, h.tanh_())


def test_lists_win_over_those_of_init_and_do_not_reach_into_inner_regions() -> None:
    amp.init("O1", dtype="bf16", custom_white_list=("softmax", "exp"), custom_black_list=("linear",))
    x, layer = torch.rand(2, 4), nn.Linear(4, 4)
    with amp.autocast(custom_black_list=["exp"], custom_white_list=["F.linear"]):
        assert x.softmax(-1).dtype is HALF
        assert x.to(HALF).exp().dtype is FLOAT
        assert layer(x).dtype is HALF
        with amp.autocast():
            assert x.exp().dtype is HALF
            assert layer(x).dtype is FLOAT
            with amp.autocast(enabled=False):
                assert x.exp().dtype is FLOAT
                assert x.to(HALF).softmax(-1).dtype is HALF
            with amp.autocast(dtype=torch.float16):
                assert x.exp().dtype is torch.float16
        assert x.to(HALF).exp().dtype is FLOAT


@pytest.mark.parametrize("caller", [lambda **lists: amp.autocast(**lists), lambda **lists: amp.init("O1", **lists)])
def test_wrong_names_are_errors_that_suggest_the_nearest(caller: Any) -> None:
    with pytest.raises(ValueError, match=r"got 'sofmax' in custom_white_list.*did you mean .*'softmax'"):
        caller(custom_white_list=["sofmax"])
    with pytest.raises(ValueError, match=r"got 'F.conv2' in custom_black_list.*'conv2d'"):
        caller(custom_black_list=["F.conv2"])
    with pytest.raises(ValueError, match=r"got 'exp' in custom_white_list and in custom_black_list"):
        caller(custom_white_list=["torch.exp"], custom_black_list=["exp_"])
    with pytest.raises((TypeError, ValueError), match="'softmax'"):
        caller(custom_white_list="softmax")


def test_wrong_policies_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cast_policy='cuda'; allowed: None, 'torch', 'apex'"):
        amp.autocast(cast_policy="cuda")  # type: ignore[arg-type]


def test_the_policy_of_a_region_wins_and_works_as_a_decorator() -> None:
    amp.init("O1", dtype="bf16")
    h = torch.rand(4, dtype=HALF)

    @amp.autocast(cast_policy="apex", custom_white_list={"exp"})
    def inner() -> tuple[torch.dtype, torch.dtype]:
        return F.gelu(h).dtype, h.float().exp().dtype

    with amp.autocast():
        assert F.gelu(h).dtype is HALF
        assert inner() == (FLOAT, HALF)
        assert F.gelu(h).dtype is HALF


@pytest.mark.parametrize("level", ["O0", None])
def test_nothing_happens_at_o0_and_before_init(level: Any) -> None:
    if level:
        amp.init(level, custom_white_list=["exp"], cast_policy="apex")
    h = torch.rand(4, dtype=HALF)
    with amp.autocast(custom_white_list={"exp"}):
        assert not torch.overrides._get_current_function_mode_stack()
        assert torch.rand(4).exp().dtype is FLOAT
        assert h.softmax(-1).dtype is HALF
        assert F.binary_cross_entropy(torch.ones(2), torch.ones(2)) == 0


class Block(nn.Module):
    """Every operation in it is one whose type the policy decides on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.gru = nn.Linear(4, 4), nn.LayerNorm(4), nn.GRU(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.gru(self.norm(self.linear(x)))[0]
        return F.normalize(y.softmax(-1).exp()) ** 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_recomputes_under_the_same_casts(reentrant: bool) -> None:
    amp.init("O1", dtype="bf16")
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    x = torch.randn(3, 2, 4, requires_grad=True)

    def gradients(run: Any) -> list[torch.Tensor]:
        with amp.autocast(custom_white_list={"exp"}):
            loss = run(x).sum()
        return list(torch.autograd.grad(loss, [*model.parameters()]) if not reentrant else backward(loss))

    def backward(loss: torch.Tensor) -> list[torch.Tensor]:
        model.zero_grad()
        loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain = gradients(model)
    for run in (
        lambda value: checkpoint(model, value, use_reentrant=reentrant),
        lambda value: checkpoint_sequential(model, 2, value, use_reentrant=reentrant),
    ):
        again = gradients(run)
        assert len(again) == len(plain) > 0
        assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert not torch.overrides._get_current_function_mode_stack()


def test_shutdown_gives_torch_its_checkpointing_back() -> None:
    from torch.utils import checkpoint as module

    def held() -> list[Any]:
        return [vars(module)["_checkpoint_without_reentrant_generator"], vars(module.CheckpointFunction)["forward"]]

    before = held()
    amp.init("O1", dtype="bf16")
    with amp.autocast():
        changed = held()
    amp.shutdown()
    assert all(a is not b for a, b in zip(before, changed, strict=True))
    assert all(a is b for a, b in zip(before, held(), strict=True))


def test_weights_are_cast_once_in_a_region() -> None:
    amp.init("O1", dtype="bf16")
    layer = nn.Linear(4, 4)
    x = torch.rand(2, 4)
    with amp.autocast(custom_white_list={"linear"}):
        first = layer(x)
        F.softmax(first, -1)
        with torch.no_grad():
            layer.weight.zero_()
        assert torch.equal(layer(x), first), "the half weight was kept"
    with amp.autocast():
        assert not torch.equal(layer(x), first)


def test_an_exception_ends_the_region() -> None:
    amp.init("O1", dtype="bf16")
    inner = amp.autocast(cast_policy="apex")
    with pytest.raises(ZeroDivisionError), amp.autocast(custom_white_list={"exp"}), inner:
        torch.ones(2, dtype=HALF).exp()
        raise ZeroDivisionError
    assert not torch.overrides._get_current_function_mode_stack() and not torch.is_autocast_enabled("cpu")
    with amp.autocast():
        with pytest.raises(IndexError):
            torch.ones(2, dtype=HALF).softmax(5)
        assert torch.is_autocast_enabled("cpu"), "also after an error in a cast operation"


def test_other_threads_are_not_in_the_region() -> None:
    amp.init("O1", dtype="bf16")
    seen: list[torch.dtype] = []

    def work() -> None:
        seen.append(torch.ones(2).exp().dtype)
        with amp.autocast():
            seen.append(torch.ones(2, dtype=HALF).exp().dtype)
        seen.append(torch.ones(2, dtype=HALF).exp().dtype)

    with amp.autocast(custom_white_list={"exp"}):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert torch.ones(2).exp().dtype is HALF
    assert seen == [FLOAT, FLOAT, HALF]


def test_compiled_functions_cast_the_same() -> None:
    amp.init("O1", dtype="bf16")
    layer = nn.Linear(4, 4)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = layer(x)
        return F.softmax(y, -1), y**2, 1 / y, F.normalize(y), y.tanh(), F.layer_norm(y, (4,))

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    x = torch.rand(3, 4)
    with amp.autocast(custom_black_list={"tanh"}):
        expected, got = run(x), compiled(x)
    assert [y.dtype for y in got] == [y.dtype for y in expected]
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    amp.register_float_function(torch, "sin")
    sine = torch.compile(lambda x: torch.sin(x.to(HALF)), backend="aot_eager")
    with amp.autocast():
        assert sine(x).dtype is FLOAT
    with amp.disable_casts():
        assert sine(x).dtype is HALF
    torch._dynamo.reset()


REGIONS = st.fixed_dictionaries(
    {
        "enabled": st.booleans(),
        "dtype": st.sampled_from([None, torch.float16, torch.bfloat16]),
        "cast_policy": st.sampled_from([None, "torch", "apex"]),
        "custom_white_list": st.sets(st.sampled_from(["exp", "softmax", "gelu"]), max_size=2),
        "custom_black_list": st.sets(st.sampled_from(["matmul", "tanh", "linear"]), max_size=2),
    }
)


def state() -> tuple[Any, ...]:
    h, f = torch.full((2, 2), 0.5, dtype=HALF), torch.full((2, 2), 0.5)
    seen = [h.exp(), f.exp(), f.softmax(-1), F.gelu(f), F.gelu(h), f @ f, h @ h, h.tanh(), F.linear(f, f)]
    modes = len(torch.overrides._get_current_function_mode_stack())
    return *(y.dtype for y in seen), modes, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(REGIONS, min_size=1, max_size=4), st.integers(0, 4), st.booleans())
def test_leaving_nested_regions_restores_every_state(regions: list[Any], raises_at: int, off: bool) -> None:
    amp.init("O1", dtype="bf16")
    before = state()
    with pytest.raises(KeyError) if raises_at <= len(regions) else ExitStack():
        enter(regions, raises_at, off)
    assert state() == before
    amp.shutdown()


def enter(regions: list[Any], raises_at: int, off: bool) -> None:
    outside = state()
    if raises_at == 0:
        raise KeyError
    if not regions:
        return
    with amp.autocast(**regions[0]):
        inside = state()
        if off:
            with amp.disable_casts():
                assert state()[:9] == (HALF, FLOAT, FLOAT, FLOAT, HALF, FLOAT, HALF, HALF, FLOAT)
            assert state() == inside
        enter(regions[1:], raises_at - 1, off)
        assert state() == inside
    assert state() == outside
