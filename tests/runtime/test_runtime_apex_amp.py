"""Apex's amp in one process."""

from __future__ import annotations

import copy
import io
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import amp_runtime
import pytest
import torch
import torch.nn.functional as F
from amp_runtime.apex import amp
from apex_scripts import batches, net, prepare, reference, reset, train
from torch import nn
from torch.utils.checkpoint import checkpoint

INF = float("inf")
LEVELS = ["O0", "O1", "O2", "O3"]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("AMP_DTYPE", raising=False)
    reset()
    yield
    reset()


@pytest.fixture
def fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_DTYPE", "fp16")


def scaler() -> Any:
    return amp._amp_state.loss_scalers[0]


def overflow(model: Any, optimizer: Any, **options: Any) -> None:
    loss = model(batches(1)[0][0]).sum()
    with amp.scale_loss(loss, optimizer, **options) as scaled_loss:
        (scaled_loss * INF).backward()


def snapshot(optimizer: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in amp.master_params(optimizer)]


def same(first: Any, second: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# ---------------------------------------------------------------------- initialize


def test_one_import_gives_every_subpackage() -> None:
    import amp_runtime.apex as apex
    from amp_runtime.apex.amp._amp_state import _amp_state
    from amp_runtime.apex.parallel.LARC import LARC

    assert apex.amp._amp_state is _amp_state is amp._amp_state
    assert apex.parallel.LARC is LARC is amp_runtime.optim.LARC
    assert apex.amp.scaler.LossScaler(128.0).loss_scale() == 128.0
    for name in set(apex.__all__) - {"install"}:
        assert getattr(apex, name).__name__ == f"amp_runtime.apex.{name}"
    with pytest.raises(AttributeError, match="transformer"):
        getattr(apex, "transformer")  # noqa: B009


@pytest.mark.parametrize(
    ("level", "properties"),
    [
        ("O0", (torch.float32, False, None, False, 1.0)),
        ("O1", (None, True, None, None, "dynamic")),
        ("O2", (torch.float16, False, True, True, "dynamic")),
        ("O3", (torch.float16, False, False, False, 1.0)),
    ],
)
@pytest.mark.usefixtures("fp16")
def test_the_properties_of_each_level(level: str, properties: Any, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(level, verbosity=1)
    found = amp._amp_state.opt_properties
    assert (
        found.cast_model_type,
        found.patch_torch_functions,
        found.keep_batchnorm_fp32,
        found.master_weights,
        found.loss_scale,
    ) == properties
    printed = capsys.readouterr().out
    assert f"Selected optimization level {level}" in printed
    assert printed.count(f"master_weights         : {properties[3]}") == 2


def test_user_properties_override_the_levels_and_strings_are_accepted() -> None:
    prepare("O2", loss_scale="128.0", keep_batchnorm_fp32="False", cast_model_type=torch.float16, num_losses=3)
    found = amp._amp_state.opt_properties
    assert found.loss_scale == 128.0 and found.keep_batchnorm_fp32 is False
    assert found.cast_model_type is torch.float16
    assert [s.loss_scale() for s in amp._amp_state.loss_scalers] == [128.0] * 3


def test_scales_are_the_13th_and_14th_positional_argument() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, True, "O1", None, None, None, None, None, None, 1, 0, 4.0, 32.0)
    assert scaler().loss_scale() == 32.0
    overflow(model, optimizer)
    overflow(model, optimizer)
    overflow(model, optimizer)
    overflow(model, optimizer)
    assert scaler().loss_scale() == 4.0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"opt_level": "01"}, RuntimeError, "letter O"),
        ({"opt_level": "O1", "keep_batchnorm_fp32": True}, RuntimeError, "keep_batchnorm_fp32 was True"),
        ({"opt_level": "O1", "keep_batchnorm_fp32": "False"}, RuntimeError, "keep_batchnorm_fp32"),
        ({"opt_level": "O1", "master_weights": True}, RuntimeError, "master_weights with O1"),
        ({"opt_level": "O1", "cast_model_type": torch.float16}, RuntimeError, "cast_model_type was torch.float16"),
        ({"opt_level": "O2", "patch_torch_functions": True}, RuntimeError, "opt_level='O1'"),
        ({"opt_level": "O2", "keep_batchnorm_fp32": "yes"}, AssertionError, "'yes'"),
        ({"opt_level": "O2", "loss_scale": "high"}, ValueError, "high"),
        ({"opt_level": "O2", "loss_scale": -1.0}, ValueError, "-1.0"),
        ({"opt_level": "O3", "combine_grad": True}, RuntimeError, "combine_grad"),
        ({"opt_level": "O2", "combine_ddp": True}, RuntimeError, "combine_grad=True"),
        ({"opt_level": "O2", "user_cast_preferred": True}, RuntimeError, "O1"),
    ],
)
def test_wrong_properties_are_refused_as_in_apex(options: Any, error: Any, message: str) -> None:
    model = net()
    with pytest.raises(error, match=message):
        amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), verbosity=0, **options)


def test_wrong_models_and_optimizers_are_refused_as_in_apex() -> None:
    from amp_runtime.apex.contrib.optimizers import FP16_Optimizer as FusedFP16Optimizer
    from amp_runtime.apex.fp16_utils import FP16_Optimizer

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="list of models, not a tuple"):
        amp.initialize((model,), optimizer, verbosity=0)
    with pytest.raises(TypeError, match="list of optimizers, not a tuple"):
        amp.initialize(model, (optimizer,), verbosity=0)
    with pytest.raises(RuntimeError, match="AFTER"):
        amp.initialize(nn.DataParallel(model), optimizer, verbosity=0)
    with pytest.raises(RuntimeError, match=r"do not need to call \.half"):
        amp.initialize(net().half(), optimizer, verbosity=0)
    for kind in (FP16_Optimizer, FusedFP16Optimizer):  # each scales losses itself, so amp would scale them twice
        with pytest.raises(RuntimeError, match="FP16_Optimizer"):
            amp.initialize(net(), kind(torch.optim.SGD(net().parameters(), lr=0.1)), verbosity=0)
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    with pytest.raises(RuntimeError, match=r"only be passed through amp\.initialize once"):
        amp.initialize(net(), optimizer, opt_level="O2", verbosity=0)


def test_a_half_model_is_taken_if_the_script_says_so() -> None:
    amp._amp_state.allow_incoming_model_not_fp32 = True
    model = amp.initialize(net().bfloat16(), opt_level="O2", verbosity=0)
    assert model.first.weight.dtype is torch.bfloat16


def test_hard_override_turns_refusals_into_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    amp._amp_state.hard_override = True
    prepare("O1", keep_batchnorm_fp32=True)
    assert "keep_batchnorm_fp32 was True" in capsys.readouterr().out


def test_what_comes_back_has_the_shape_of_what_was_given() -> None:
    models = [net(), net()]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    assert amp.initialize(models[0], opt_level="O0", verbosity=0) is models[0]
    assert amp.initialize([models[0]], opt_level="O0", verbosity=0) == [models[0]]
    assert amp.initialize([models[0]], optimizers[0], opt_level="O0", verbosity=0) == ([models[0]], optimizers[0])
    assert amp.initialize(models[1], [optimizers[1]], opt_level="O0", verbosity=0) == (models[1], [optimizers[1]])


def test_enabled_false_leaves_everything_alone() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = dict(vars(optimizer))
    assert amp.initialize(model, optimizer, enabled=False, opt_level="O2") == (model, optimizer)
    assert vars(optimizer) == before and model.first.weight.dtype is torch.float32
    loss = model(batches(1)[0][0]).sum()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        assert scaled_loss is loss
    with pytest.raises(AttributeError, match="loss_scalers"):
        amp.state_dict()


def test_scale_loss_before_initialize_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"amp.initialize\(model, optimizer"), amp.scale_loss(torch.ones(()), None):
        pass


def test_environment_variables_choose_level_and_half_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_OPT_LEVEL", "O2")
    assert prepare("O1")[0].first.weight.dtype is torch.bfloat16
    monkeypatch.setenv("AMP_DTYPE", "fp16")
    assert prepare("O1")[0].first.weight.dtype is torch.float16
    monkeypatch.setenv("AMP_OPT_LEVEL", "O1")
    prepare("O2", keep_batchnorm_fp32="True", master_weights=True, loss_scale=128.0)
    assert amp._amp_state.opt_properties.master_weights is None and scaler().loss_scale() == 128.0
    monkeypatch.setenv("AMP_DTYPE", "fp8")
    with pytest.raises(ValueError, match="'fp8'"):
        prepare("O1")


def test_the_runtimes_dtype_is_followed() -> None:
    amp_runtime.init("O0", dtype="fp16")
    assert prepare("O2")[0].first.weight.dtype is torch.float16


# ---------------------------------------------------------------------- training


def test_o0_is_plain_training_bit_for_bit() -> None:
    data = batches(6)
    expected, plain = reference(data)
    model, optimizer = prepare("O0")
    assert train(model, optimizer, data) == expected
    assert same(plain.state_dict().values(), model.state_dict().values())


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_losses_follow_float32(level: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_DTYPE", dtype)
    data = batches(4) * 4
    expected, _ = reference(data)
    model, optimizer = prepare(level)
    losses = train(model, optimizer, data)
    assert losses[-1] < losses[0] * 0.8
    assert losses == pytest.approx(expected, abs=0.02 if dtype == "fp16" else 0.12)


@pytest.mark.parametrize("level", LEVELS)
def test_gan_with_two_losses_and_optimizers(level: str) -> None:
    torch.manual_seed(1)
    generator, critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6)), nn.Linear(6, 1)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.02) for m in (generator, critic)]
    [generator, critic], [first, second] = amp.initialize(
        [generator, critic], optimizers, True, level, num_losses=3, verbosity=0
    )
    real = torch.randn(16, 6) + 2
    gaps = []
    for _ in range(30):
        second.zero_grad()
        fake = generator(torch.randn(16, 4))
        for loss_id, (batch, target) in enumerate(((real, 1.0), (fake.detach(), 0.0))):
            score = critic(batch)
            loss = F.binary_cross_entropy_with_logits(score, torch.full_like(score, target))
            with amp.scale_loss(loss, second, loss_id=loss_id) as scaled_loss:
                scaled_loss.backward()
        second.step()
        first.zero_grad()
        score = critic(fake)
        with amp.scale_loss(F.binary_cross_entropy_with_logits(score, torch.ones_like(score)), first, 2) as scaled:
            scaled.backward()
        first.step()
        gaps.append((fake.mean() - real.mean()).abs().item())
    assert gaps[-1] < gaps[0] * 0.8
    if level != "O0":
        assert [s._unskipped for s in amp._amp_state.loss_scalers] == [30, 30, 30]


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.usefixtures("fp16")
def test_random_overflows_never_corrupt(level: str) -> None:
    random = torch.Generator().manual_seed(0)
    model, optimizer = prepare(level, model=nn.Linear(6, 3), loss_scale="dynamic", scale_window=5)
    skipped = 0
    for x, y in batches(4) * 100:
        optimizer.zero_grad()
        value = (INF, -INF, float("nan"), 1.0, 1.0, 1.0)[int(torch.randint(6, (), generator=random))]
        before = snapshot(optimizer)
        with amp.scale_loss(F.cross_entropy(model(x), y), optimizer) as scaled_loss:
            (scaled_loss * value).backward()
        skips = optimizer._amp_stash.already_patched
        nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()
        skipped += skips
        assert skips or value == 1.0
        assert same(before, snapshot(optimizer)) is skips
    assert 100 < skipped < 300 and scaler().loss_scale() > 0
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_scripts_that_reach_into_the_state_run() -> None:
    """Large-batch scripts accumulate, reduce and check themselves, and know amp's attributes."""
    import amp_runtime.apex as apex
    from amp_runtime.apex.amp import _amp_state

    model, optimizer = prepare("O2", lambda m: apex.optimizers.FusedLAMB(m.parameters(), lr=0.01))
    for loss_scaler in _amp_state.loss_scalers:
        loss_scaler._loss_scale = 2.0**10
    losses = []
    for x, y in batches(1) * 8:
        loss = F.cross_entropy(model(x), y)
        with amp.scale_loss(loss, optimizer, delay_overflow_check=True) as scaled_loss:
            scaled_loss.backward()
        masters = [p.grad for p in amp.master_params(optimizer) if p.grad is not None]
        flat = apex.apex_C.flatten(masters)
        flag = torch.zeros(1, dtype=torch.int)
        views = list(apex.apex_C.unflatten(flat, masters))
        apex.multi_tensor_apply.multi_tensor_applier(apex.amp_C.multi_tensor_scale, flag, [masters, views], 1.0)
        assert not flag.item() and not _amp_state.loss_scalers[0].update_scale()
        optimizer.step()
        assert all(p.grad is None for p in optimizer._amp_stash.all_fp32_from_fp16_params)
        for p in model.parameters():
            p.grad = None
        losses.append(loss.item())
    assert losses[-1] < losses[0] and _amp_state.loss_scalers[0]._unskipped == 8
    assert _amp_state.opt_properties.master_weights and _amp_state.loss_scalers[0].loss_scale() == 1024.0


def test_the_keywords_of_ascend() -> None:
    model, optimizer = prepare(
        "O1", dynamic_init_scale=8.0, scale_growth_factor=4.0, scale_backoff_factor=0.25, scale_window=2,
        combine_grad=True, combine_ddp=True, ddp_replica_count=2, user_cast_preferred=True, check_combined_tensors=True,
    )  # fmt: skip
    train(model, optimizer, batches(2))
    assert scaler().loss_scale() == 32.0
    overflow(model, optimizer)
    assert scaler().loss_scale() == 8.0


def test_the_import_changes_nothing() -> None:
    import amp_runtime.apex as apex

    before = torch.get_rng_state()
    for name in apex.__all__:
        getattr(apex, name)
    assert torch.equal(before, torch.get_rng_state())
    for function in (torch.mm, F.softmax, torch.Tensor.matmul, torch._VF.lstm, torch.Tensor.__matmul__):
        assert not hasattr(function, "amp_original")


# ---------------------------------------------------------------------- O1


def test_o1_casts_in_torch_functions_everywhere_and_nowhere_else() -> None:
    model, _ = prepare("O1", model=nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 4)))
    x = torch.randn(2, 1, 5, 5)
    assert model[0].weight.dtype is torch.float32
    half = model(x)
    assert half.dtype is torch.bfloat16
    for result in (torch.mm(half.t(), half), half @ half.t(), torch.einsum("ij,ij->i", half, half.float())):
        assert result.dtype is torch.bfloat16
    for result in (F.softmax(half, 1), F.gelu(half), half.exp(), half**2, half.sum(), half.cpu(), half.log_softmax(1)):
        assert result.dtype is torch.float32
    assert F.cross_entropy(half, torch.tensor([0, 1])).dtype is torch.float32
    assert torch.addcmul(half.float(), half, half).dtype is torch.float32
    assert torch.cat([half, half.float()]).dtype is torch.float32
    assert F.linear(x.double().view(2, 25)[:, :18], model[2].weight.double()).dtype is torch.float64


def test_o1_on_an_accelerator_leaves_tensors_on_the_cpu_alone() -> None:
    amp.init(device_type="cuda")
    a = torch.ones(2, 2)
    assert (a @ a).dtype is torch.float32 and amp._amp_state.handle.half_dtype is torch.float16
    meta = a.to("meta")
    assert (meta @ meta).dtype is torch.float16 and F.softmax(meta @ meta, 0).dtype is torch.float32


def test_outputs_become_numpy_arrays() -> None:
    model, _ = prepare("O1")
    output = model(batches(1)[0][0]).detach()
    assert output.dtype is torch.bfloat16 and output.numpy().dtype == output.cpu().numpy().dtype == "float32"


def test_o1_reaches_other_threads() -> None:
    prepare("O1")
    found: list[torch.dtype] = []
    thread = threading.Thread(target=lambda: found.append((torch.ones(2, 2) @ torch.ones(2, 2)).dtype))
    thread.start()
    thread.join()
    assert found == [torch.bfloat16]


@pytest.mark.parametrize("reentrant", [True, False])
def test_o1_recomputes_a_checkpoint_in_the_same_precision(reentrant: bool) -> None:
    x, y = batches(1)[0]
    model, _ = prepare("O1")
    F.cross_entropy(model(x), y).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    x = x.requires_grad_()
    F.cross_entropy(checkpoint(model, x, use_reentrant=reentrant), y).backward()
    assert same(expected, [p.grad for p in model.parameters()])


def test_o1_uses_the_weights_as_they_are_after_evaluation_a_step_and_a_checkpoint() -> None:
    model, optimizer = prepare("O1", model=nn.Linear(3, 1, bias=False))
    x = torch.ones(1, 3)
    with torch.no_grad():
        model(x)
    with amp.scale_loss(model(x).sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
    assert model.weight.grad.tolist() == [[1.0] * 3], "evaluation left no weight without a gradient behind"
    optimizer.step()
    assert model(x).item() == pytest.approx(model.weight.sum().item(), rel=0.01)
    model.load_state_dict({"weight": torch.full((1, 3), 5.0)})
    assert model(x).item() == 15.0


def test_o1_runs_recurrent_layers_in_half() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(6, 8, bidirectional=True)
            self.cell = nn.GRUCell(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states, _ = self.lstm(x)
            assert states.dtype is torch.bfloat16
            return self.cell(states.mean(0))

    torch.manual_seed(0)
    model, optimizer = prepare("O1", model=Tagger())
    x, y = torch.randn(5, 8, 6), torch.randint(0, 3, (8,))
    losses = [train(model, optimizer, [(x, y)])[0] for _ in range(15)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_o1_runs_a_recurrent_layer_on_what_a_linear_layer_gives(kind: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layers = nn.Linear(6, 4), kind(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            assert hidden.dtype is torch.bfloat16
            return self.layers(hidden)[0].mean(0)

    model, optimizer = prepare("O1", model=Model())
    x, y = torch.randn(5, 8, 6), torch.randint(0, 3, (8,))
    train(model, optimizer, [(x, y)])
    with pytest.raises(RuntimeError, match=r"input.size\(-1\) must be equal to input_size"):
        model.layers(torch.ones(5, 8, 7))
    with amp.disable_casts(), pytest.raises(ValueError, match="does not match weight dtype"):
        model.layers(torch.ones(5, 8, 4, dtype=torch.bfloat16))


def test_o1_steps_without_casts() -> None:
    seen = []

    class Peek(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            seen.append((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)

    model, optimizer = prepare("O1", lambda m: Peek(m.parameters(), lr=0.1))
    optimizer.step()
    assert seen == [torch.float32] and model(batches(1)[0][0]).dtype is torch.bfloat16


def test_disable_casts_may_be_nested_and_survives_errors() -> None:
    prepare("O1")
    a = torch.ones(2, 2)
    with amp.disable_casts():
        with pytest.raises(ZeroDivisionError), amp.disable_casts():
            raise ZeroDivisionError
        assert (a @ a).dtype is torch.float32
    assert (a @ a).dtype is torch.bfloat16


def test_disable_casts_does_nothing_without_o1() -> None:
    with amp.disable_casts():
        pass
    prepare("O2")
    with amp.disable_casts():
        pass


def test_binary_cross_entropy_on_half_is_banned_unless_allowed() -> None:
    prepare("O1")
    half, target = torch.rand(3).bfloat16(), torch.ones(3)
    F.binary_cross_entropy(half.float(), target)
    with pytest.raises(NotImplementedError, match="BCEWithLogitsLoss"):
        nn.BCELoss()(half, target)
    reset()
    amp.init(allow_banned=True)
    prepare("O1")
    assert nn.BCELoss()(half, target).dtype is torch.float32


def test_decorators_are_inert_until_o1() -> None:
    class Op(torch.autograd.Function):
        @staticmethod
        @amp.float_function
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    class Scorer:
        @amp.half_function
        def score(self, pair: Any, *, extra: torch.Tensor) -> Any:
            return pair[0][0].dtype, pair[1].dtype, extra.dtype

    @amp.promote_function
    def widest(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a.dtype, b.dtype

    full, half = torch.ones(2), torch.ones(2, dtype=torch.bfloat16)
    assert Op.apply(half).dtype is torch.bfloat16 and widest(half, full) == (torch.bfloat16, torch.float32)
    prepare("O1")
    assert Op.apply(half).dtype is torch.float32
    assert Scorer().score(([full], half), extra=full) == (torch.bfloat16,) * 3
    assert widest(half, full) == (torch.float32,) * 2 and widest(half, half) == (torch.bfloat16,) * 2


def test_registered_functions_go_before_the_built_in_lists() -> None:
    class Pool(nn.MaxPool1d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            self.seen = input.dtype
            return super().forward(input)

    import types

    home = types.SimpleNamespace(Pool=Pool)
    amp.register_float_function(torch, "matmul")
    amp.register_half_function(F, "softmax")
    amp.register_float_function(home, "Pool")
    amp.register_promote_function(torch, "minimum")
    with pytest.raises(ValueError, match="No function named missing"):
        amp.register_half_function(torch, "missing")
    half = torch.ones(2, 2).bfloat16()
    assert torch.matmul(half, half).dtype is torch.bfloat16
    prepare("O1")
    assert torch.matmul(half, half).dtype is torch.float32
    assert F.softmax(half.float(), 0).dtype is torch.bfloat16
    assert torch.minimum(half, half.float()).dtype is torch.float32
    pool = home.Pool(2)
    pool(half)
    assert isinstance(pool, nn.MaxPool1d) and pool.seen is torch.float32


def test_a_second_initialize_wraps_nothing_twice_and_all_is_undone() -> None:
    spaces = (torch, F, torch.Tensor, torch._VF)
    before = [dict(vars(space)) for space in spaces]
    prepare("O1")
    once = torch.mm
    prepare("O1")
    assert torch.mm is once
    amp._amp_state.handle._deactivate()
    assert [dict(vars(space)) for space in spaces] == before and not amp._amp_state.handle.is_active()


# ---------------------------------------------------------------------- scale_loss


@pytest.mark.usefixtures("fp16")
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("loss_scale", ["dynamic", 128.0])
def test_gradients_have_their_true_values_after_the_block(level: str, loss_scale: Any) -> None:
    model, optimizer = prepare(level, model=nn.Linear(3, 1), loss_scale=loss_scale, dynamic_init_scale=1024.0)
    for count in (1, 2):
        with amp.scale_loss(model(torch.ones(1, 3)).sum(), optimizer) as scaled_loss:
            assert scaled_loss.dtype is torch.float32
            scaled_loss.backward()
        gradients = [p.grad for p in amp.master_params(optimizer)]
        assert [g.flatten().tolist() for g in gradients] == [[float(count)] * 3, [float(count)]]
        assert all(g.dtype is (torch.float16 if level == "O3" else torch.float32) for g in gradients)


@pytest.mark.usefixtures("fp16")
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_the_scale_may_change_between_accumulated_backwards(level: str) -> None:
    model, optimizer = prepare(level, model=nn.Linear(3, 1))
    for scale in (64.0, 1024.0):
        scaler()._loss_scale = scale
        with amp.scale_loss(model(torch.ones(1, 3)).sum(), optimizer) as scaled_loss:
            scaled_loss.backward()
    assert next(amp.master_params(optimizer)).grad.tolist() == [[2.0] * 3]


def test_the_scale_grows_by_backward_passes() -> None:
    model, optimizer = prepare("O1", scale_window=3, dynamic_init_scale=8.0, scale_growth_factor=4.0)
    for _ in range(3):
        with amp.scale_loss(model(batches(1)[0][0]).sum() / 3, optimizer) as scaled_loss:
            scaled_loss.backward()
        assert scaler()._unskipped in (1, 2, 0)
    optimizer.step()
    assert scaler().loss_scale() == 32.0 and scaler()._unskipped == 0


def test_the_scale_stops_at_its_limits() -> None:
    model, optimizer = prepare("O1", min_loss_scale=2.0, max_loss_scale=16.0, scale_window=1)
    assert scaler().loss_scale() == 16.0
    train(model, optimizer, batches(2))
    assert scaler().loss_scale() == 16.0
    for _ in range(5):
        overflow(model, optimizer)
    assert scaler().loss_scale() == 2.0


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_the_scale_never_becomes_zero_and_hopeless_training_is_an_error(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amp_runtime.scaler, "max_skips", 60)
    model, optimizer = prepare(level)
    with pytest.raises(amp_runtime.GradientOverflowError, match="60 backward passes in a row") as error:
        for _ in range(60):
            overflow(model, optimizer)
            optimizer.step()
    assert scaler().loss_scale() > 0
    assert "Net" in str(error.value)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("value", [INF, float("nan")])
@pytest.mark.usefixtures("fp16")
def test_an_overflow_skips_one_step(level: str, value: float, capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = prepare(level, verbosity=1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = snapshot(optimizer)
    capsys.readouterr()
    loss = model(batches(1)[0][0]).sum()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        (scaled_loss * value).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert optimizer.step() is None
        scheduler.step()
    printed = capsys.readouterr().out
    if level == "O3":
        assert printed == "Gradient overflow.  Skipping step, loss scaler 0 at the fixed loss scale 1.0\n"
    else:
        assert printed == "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0\n"
    assert same(before, snapshot(optimizer))
    train(model, optimizer, batches(1))
    after = snapshot(optimizer)
    assert not same(before, after) and all(torch.isfinite(p).all() for p in after)


def test_a_fixed_scale_skips_too_and_stays() -> None:
    model, optimizer = prepare("O2", loss_scale=128.0)
    before = snapshot(optimizer)
    overflow(model, optimizer)
    assert optimizer._amp_stash.already_patched
    optimizer.step()
    assert same(before, snapshot(optimizer)) and scaler().loss_scale() == 128.0
    assert not optimizer._amp_stash.already_patched


def test_only_new_gradients_are_checked_and_an_overflow_among_several_backwards_skips_the_step() -> None:
    model, optimizer = prepare("O1")
    before = snapshot(optimizer)
    overflow(model, optimizer)
    with amp.scale_loss(model(batches(1)[0][0]).sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
    assert scaler()._unskipped == 1, "the second backward was good"
    optimizer.step()
    assert same(before, snapshot(optimizer))


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_several_optimizers_of_one_loss_skip_together(level: str) -> None:
    model = net()
    optimizers = [
        torch.optim.SGD(model.first.parameters(), lr=0.1),
        torch.optim.Adam([*model.norm.parameters(), *model.last.parameters()], lr=0.1),
    ]
    model, optimizers = amp.initialize(model, optimizers, opt_level=level, verbosity=0)
    before = [snapshot(o) for o in optimizers]
    overflow(model, tuple(optimizers))
    for o in optimizers:
        o.step()
        o.zero_grad()
    assert all(same(b, snapshot(o)) for b, o in zip(before, optimizers, strict=True))
    with amp.scale_loss(model(batches(1)[0][0]).square().sum(), optimizers) as scaled_loss:
        scaled_loss.backward()
    for o in optimizers:
        o.step()
    assert not any(same(b, snapshot(o)) for b, o in zip(before, optimizers, strict=True))


def test_unknown_losses_and_optimizers_are_named() -> None:
    model, optimizer = prepare("O1")
    loss = model(batches(1)[0][0]).sum()
    with pytest.raises(IndexError, match="loss_id=1; allowed: 0 to 0"), amp.scale_loss(loss, optimizer, loss_id=1):
        pass
    other = torch.optim.Adam(model.parameters())
    with pytest.raises(RuntimeError, match="Adam that was not passed"), amp.scale_loss(loss, other):
        pass


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("delay", [True, False])
def test_accumulation_equals_one_large_batch(level: str, delay: bool) -> None:
    data = batches(3, rows=12)
    torch.manual_seed(0)
    shape = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    model, optimizer = prepare(level, model=copy.deepcopy(shape), cast_model_type=False if level != "O1" else None)
    plain = torch.optim.SGD(shape.parameters(), lr=0.1, momentum=0.9)
    for x, y in data:
        plain.zero_grad()
        F.cross_entropy(shape(x), y).backward()
        plain.step()
        optimizer.zero_grad()
        for i in range(3):
            loss = F.cross_entropy(model(x[i::3]), y[i::3]) / 3
            with amp.scale_loss(loss, optimizer, delay_unscale=delay and i < 2) as scaled_loss:
                scaled_loss.backward()
        optimizer.step()
    tolerance = 0.02 if level == "O1" else 1e-6
    torch.testing.assert_close(list(model.parameters()), list(shape.parameters()), rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("fp16")
def test_delayed_unscaling_under_masters_unscales_once() -> None:
    model, optimizer = prepare("O2", model=nn.Linear(3, 1), dynamic_init_scale=1024.0)
    for i in range(3):
        with amp.scale_loss(model(torch.ones(1, 3)).sum(), optimizer, delay_unscale=i < 2) as scaled_loss:
            scaled_loss.backward()
        assert optimizer._amp_stash.params_have_scaled_gradients is (i < 2)
    assert next(amp.master_params(optimizer)).grad.tolist() == [[3.0] * 3]
    assert scaler()._unskipped == 1


def test_the_scaler_tells_by_the_name_of_apex_whether_gradients_overflowed() -> None:
    model, optimizer = prepare("O2")
    overflow(model, optimizer)
    assert scaler()._has_overflow is True
    scaler()._has_overflow = False
    assert scaler()._has_overflow is False and not scaler().found_overflow()
    scaler()._has_overflow = True
    assert scaler().update_scale() is True


def test_delayed_overflow_check_leaves_the_decision_to_the_script() -> None:
    model, optimizer = prepare("O2")
    overflow(model, optimizer, delay_overflow_check=True)
    assert scaler().loss_scale() == 65536.0 and not optimizer._amp_stash.already_patched
    assert scaler().update_scale() is True
    assert scaler().loss_scale() == 32768.0


def test_sparse_gradients_are_unscaled_and_accumulated() -> None:
    model = nn.Embedding(4, 2, sparse=True)
    model, optimizer = prepare("O1", lambda m: torch.optim.SGD(m.parameters(), lr=1.0), model)
    for _ in range(2):
        with amp.scale_loss(model(torch.tensor([1, 1])).sum(), optimizer) as scaled_loss:
            scaled_loss.backward()
    assert model.weight.grad.is_sparse
    assert model.weight.grad.to_dense().tolist() == [[0, 0], [4, 4], [0, 0], [0, 0]]


def test_gradient_penalty_inside_scale_loss() -> None:
    model, optimizer = prepare("O1", model=nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))
    x = batches(1)[0][0].requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    with amp.scale_loss((slope.norm(dim=1) - 1).square().mean(), optimizer) as scaled_loss:
        scaled_loss.backward()
    assert model[0].weight.grad.abs().sum() > 0
    optimizer.step()


# ---------------------------------------------------------------------- O2


@pytest.mark.usefixtures("fp16")
def test_o2_casts_all_but_batch_norm_with_weights() -> None:
    model, optimizer = prepare("O2")
    assert model.first.weight.dtype is torch.float16
    assert model.norm.weight.dtype is model.norm.running_mean.dtype is torch.float32
    assert model.plain_norm.running_mean.dtype is torch.float16, "as in Apex"
    assert model(batches(1)[0][0]).dtype is torch.float32
    assert all(tensor.dtype is not torch.float16 for tensor in model.state_dict().values())
    assert model.first.state_dict()["weight"].dtype is torch.float32
    assert [p.dtype for p in amp.master_params(optimizer)] == [torch.float32] * 6
    stash = optimizer._amp_stash
    assert [p.shape for p in stash.all_fp16_params] == [p.shape for p in stash.all_fp32_from_fp16_params]
    assert len(stash.all_fp32_from_fp32_params) == 2 and stash.lazy_init_called
    optimizer._amp_lazy_init()


@pytest.mark.usefixtures("fp16")
def test_cast_model_outputs_and_inputs_in_containers() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, batch: Any, *, scale: torch.Tensor) -> Any:
            assert batch["x"][0].dtype is scale.dtype is torch.float16 and batch["ids"].dtype is torch.int64
            assert batch["name"] == "a"
            return {"y": (self.layer(batch["x"][0] * scale), batch["ids"])}

    batch = {"x": [torch.ones(1, 2)], "ids": torch.arange(2), "name": "a"}
    model = amp.initialize(Two(), opt_level="O2", verbosity=0)
    assert model(batch, scale=torch.ones(()))["y"][0].dtype is torch.float32
    model = amp.initialize(Two(), opt_level="O3", cast_model_outputs=torch.float16, verbosity=0)
    output = model(batch, scale=torch.ones(()))["y"]
    assert output[0].dtype is torch.float16 and output[1].dtype is torch.int64
    model = amp.initialize(nn.Linear(2, 2), opt_level="O1", cast_model_outputs=torch.float32, verbosity=0)
    assert model(torch.ones(1, 2)).dtype is torch.float32


def test_o2_keeps_small_updates_in_the_masters() -> None:
    model, optimizer = prepare("O2", lambda m: torch.optim.SGD(m.parameters(), lr=1e-5), nn.Linear(3, 1))
    with torch.no_grad():
        model.weight.fill_(1.0)
    for _ in range(100):
        optimizer.zero_grad()
        with amp.scale_loss(model(torch.ones(1, 3)).sum(), optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    assert model.weight.tolist() == [[1.0] * 3]
    assert next(amp.master_params(optimizer)).tolist() == [[pytest.approx(0.999, abs=1e-5)] * 3]


@pytest.mark.usefixtures("fp16")
def test_clipping_master_params_is_what_the_step_uses() -> None:
    layer = nn.Linear(3, 1, bias=False)
    model, optimizer = prepare("O2", lambda m: torch.optim.SGD(m.parameters(), lr=1.0), layer, max_loss_scale=64.0)
    before = snapshot(optimizer)[0]
    with amp.scale_loss(model(torch.full((1, 3), 10.0)).sum(), optimizer) as scaled_loss:
        scaled_loss.backward()
    norm = nn.utils.clip_grad_norm_(amp.master_params(optimizer), 3**0.5)
    assert norm.item() == pytest.approx(10 * 3**0.5)
    optimizer.step()
    torch.testing.assert_close(snapshot(optimizer)[0], before - 1.0)
    assert optimizer.clip_optimizer_grad_norm_fused(1.0).item() == 0.0


@pytest.mark.parametrize("set_to_none", [True, False, None])
def test_zero_grad_takes_set_to_none(set_to_none: bool | None) -> None:
    model, optimizer = prepare("O2")
    overflow(model, optimizer)
    optimizer.zero_grad() if set_to_none is None else optimizer.zero_grad(set_to_none=set_to_none)
    gradients = [p.grad for p in model.parameters()]
    assert all(g is None for g in gradients) if set_to_none else all(not g.any() for g in gradients)


def test_a_closure_is_refused_with_masters_and_works_with_o1() -> None:
    _, optimizer = prepare("O2")
    with pytest.raises(RuntimeError, match="closure"):
        optimizer.step(lambda: None)
    reset()
    x, y = batches(1)[0]
    model, optimizer = prepare("O1")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    first = optimizer.step(closure).item()
    for _ in range(10):
        last = optimizer.step(closure).item()
    assert last < first


def test_a_group_added_later_gets_masters() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.first.parameters(), lr=0.1)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    optimizer.add_param_group({"params": list(model.last.parameters()), "lr": 0.2})
    assert [p.dtype for p in amp.master_params(optimizer)] == [torch.float32] * 4
    before = model.last.weight.clone()
    train(model, optimizer, batches(2))
    assert not torch.equal(before, model.last.weight)


def test_parameters_thawed_later_are_trained_in_float32() -> None:
    model = net()
    model.first.weight.requires_grad_(False)
    model, optimizer = prepare("O2", model=model)
    before = model.first.weight.clone()
    train(model, optimizer, batches(1))
    assert torch.equal(before, model.first.weight)
    model.first.weight.requires_grad_(True)
    train(model, optimizer, batches(2))
    assert not torch.equal(before, model.first.weight)


def test_masters_follow_what_is_written_into_the_model() -> None:
    model, optimizer = prepare("O2", lambda m: torch.optim.SGD(m.parameters(), lr=0.0))
    other = net(seed=9)
    model.load_state_dict(other.state_dict())
    train(model, optimizer, batches(1))
    assert torch.equal(model.first.weight, other.first.weight.bfloat16())
    for p in model.parameters():
        p.data.clamp_(-0.01, 0.01)
    train(model, optimizer, batches(1))
    assert model.first.weight.abs().max() < 0.011


def test_a_copy_of_the_model_uses_its_own_weights() -> None:
    model, _ = prepare("O2")
    average = copy.deepcopy(model).eval()
    with torch.no_grad():
        for p in average.parameters():
            p.zero_()
    assert not average(batches(1)[0][0]).any()


@pytest.mark.parametrize("level", LEVELS)
def test_a_run_resumes_exactly(level: str) -> None:
    data = batches(8)

    def adam(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.01)

    model, optimizer = prepare(level, adam)
    train(model, optimizer, data[:4])
    file = io.BytesIO()
    torch.save({"net": model.state_dict(), "opt": optimizer.state_dict(), "amp": amp.state_dict()}, file)
    expected = train(model, optimizer, data[4:])
    masters, moments = snapshot(optimizer), optimizer.state_dict()["state"]
    reset()
    file.seek(0)
    saved = torch.load(file)
    model, optimizer = prepare(level, adam, net(seed=7))
    model.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["opt"])
    amp.load_state_dict(saved["amp"])
    assert train(model, optimizer, data[4:]) == expected
    assert same(masters, snapshot(optimizer))
    for index, state in optimizer.state_dict()["state"].items():
        assert same(moments[index].values(), state.values())


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_model_saved_whole_loads(level: str) -> None:
    x = batches(1)[0][0]
    model, _ = prepare(level)
    model.eval()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(x.to(loaded.first.weight.dtype)).float(), model(x).float())


def test_state_dict_has_apexs_keys() -> None:
    model, optimizer = prepare("O1", num_losses=2)
    overflow(model, optimizer, loss_id=1)
    assert dict(amp.state_dict()) == {
        "loss_scaler0": {"loss_scale": 65536.0, "unskipped": 0},
        "loss_scaler1": {"loss_scale": 32768.0, "unskipped": 0},
    }
    mine: dict[str, Any] = {}
    assert amp.state_dict(destination=mine) is mine and len(mine) == 2
    reset()
    prepare("O2")
    assert list(amp.state_dict()) == ["loss_scaler0", "master_params"]


def test_states_of_apex_load_and_others_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    prepare("O2")
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 512.0, "unskipped": 7}})
    assert (scaler().loss_scale(), scaler()._unskipped) == (512.0, 7)
    assert capsys.readouterr().out == ""
    amp.load_state_dict({f"loss_scaler{i}": {"loss_scale": 2.0, "unskipped": 0} for i in range(3)})
    assert "contains 3 entries, while 1 loss_scalers" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "scale"'):
        amp.load_state_dict({"scale": 1.0})
    with pytest.raises(RuntimeError, match="master_params"):
        amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0, "unskipped": 0}, "master_params": [[torch.ones(1)]]})


# ---------------------------------------------------------------------- optimizers, and the old interface


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["FusedAdam", "FusedSGD", "FusedLAMB", "FusedNovoGrad", "FusedAdagrad"])
def test_apexs_optimizers_train_at_every_level(name: str, level: str) -> None:
    from amp_runtime.apex import optimizers

    model, optimizer = prepare(level, lambda m: getattr(optimizers, name)(m.parameters(), lr=0.02))
    losses = train(model, optimizer, batches(1) * 12)
    assert losses[-1] < losses[0]
    before = snapshot(optimizer)
    overflow(model, optimizer)
    optimizer.step()
    assert level == "O0" or same(before, snapshot(optimizer))


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_larc_around_an_optimizer(level: str) -> None:
    from amp_runtime.apex.parallel import LARC

    model, optimizer = prepare(level, lambda m: LARC(optimizer=torch.optim.SGD(m.parameters(), lr=0.1), clip=False))
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    before = snapshot(optimizer)
    losses = train(model, optimizer, batches(1) * 10)
    assert losses[-1] < losses[0] and not same(before, snapshot(optimizer))


def test_the_interface_before_initialize() -> None:
    handle = amp.init()
    assert handle.is_active() and not handle.has_cache and amp._amp_state.handle is handle
    with pytest.raises(RuntimeError, match="old Amp API"):
        handle.scale_loss(torch.ones(()), None)
    model = nn.Linear(3, 1, bias=False)
    optimizer = handle.wrap_optimizer(torch.optim.SGD(model.parameters(), lr=1.0), num_loss=2)
    before = model.weight.detach().clone()
    for _ in range(2):
        with optimizer.scale_loss(model(torch.ones(1, 3)).sum()) as scaled_loss:
            assert scaled_loss.item() != pytest.approx(model(torch.ones(1, 3)).sum().item())
            scaled_loss.backward()
    with pytest.raises(RuntimeError, match="num_loss=2"), optimizer.scale_loss(torch.ones(())):
        pass
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before - 2.0)
    optimizer.zero_grad()
    with optimizer.scale_loss(model(torch.ones(1, 3)).sum()) as scaled_loss:
        (scaled_loss * INF).backward()
    before = model.weight.detach().clone()
    assert optimizer.step() is None and torch.equal(before, model.weight)
    handle._deactivate()
    assert model(torch.ones(1, 3)).dtype is torch.float32


def test_the_interface_before_initialize_disabled() -> None:
    handle = amp.init(enabled=False)
    loss = torch.ones((), requires_grad=True)
    optimizer = handle.wrap_optimizer(torch.optim.SGD([loss], lr=1.0))
    with handle.scale_loss(loss, optimizer) as first, optimizer.scale_loss(loss) as second:
        assert first is second is loss
    optimizer.step()
    assert not handle.is_active() and (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
