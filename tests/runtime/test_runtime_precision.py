"""Autocast, prepared models and fixed-precision functions in one process."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import amp_runtime as amp
import pytest
import torch
import torch.nn.functional as F
from launching import Launcher
from torch import nn

Pair = namedtuple("Pair", ["first", "second"])


@dataclass(frozen=True)
class Answer:
    logits: torch.Tensor
    note: str = "kept"


class Many(nn.Module):
    """Returns its half-precision result in one of many containers."""

    def __init__(self, pack: str = "tensor") -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(2)
        self.pack = pack
        self.seen: torch.dtype | None = None

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor | None = None) -> Any:
        self.seen = x.dtype
        h = self.linear(x)
        packs: dict[str, Any] = {
            "tensor": h,
            "tuple": (h, [h, 3]),
            "namedtuple": Pair(h, "text"),
            "dict": OrderedDict(a=h, b=None),
            "defaultdict": defaultdict(list, a=h),
            "dataclass": Answer(h),
        }
        return packs[self.pack]


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, Answer):
        value = [value.logits]
    return [t for item in value for t in leaves(item)] if isinstance(value, (list, tuple)) else []


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
@pytest.mark.parametrize("pack", ["tensor", "tuple", "namedtuple", "dict", "defaultdict", "dataclass"])
def test_outputs_come_back_as_float32_in_their_container(level: Any, pack: str) -> None:
    amp.init(level, dtype="bf16")
    plain = Many(pack)(torch.ones(3, 4))
    model = amp.prepare_model(Many(pack))
    with amp.autocast():
        out = model(torch.ones(3, 4))
        assert model.linear(torch.ones(3, 4, dtype=model.linear.weight.dtype)).dtype is torch.bfloat16
    assert type(out) is type(plain)
    assert leaves(out) and all(t.dtype is torch.float32 for t in leaves(out))
    if pack == "defaultdict":
        assert out["missing"] == []
    if pack == "dataclass":
        assert out.note == "kept" and replace(out, note="x").note == "x"


def test_an_output_that_is_float32_already_stays_the_same_object() -> None:
    amp.init("O1", dtype="bf16")
    kept = {"a": torch.ones(1), "b": [torch.ones(1)]}
    model = amp.prepare_model(nn.Identity())
    assert model(kept) is kept


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_prepared_model_can_be_copied_and_pickled_and_prepared_again(level: Any) -> None:
    amp.init(level, dtype="bf16")
    model = amp.prepare_model(Many())
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    loaded = [pickle.loads(pickle.dumps(model)), torch.load(saved, weights_only=False)]
    again = [amp.prepare_model(other) for other in loaded]
    for other in (copy.deepcopy(model), *again):
        with amp.autocast():
            assert torch.equal(other(torch.ones(3, 4)), model(torch.ones(3, 4)))
            assert other(torch.ones(3, 4)).dtype is torch.float32
    for other in again:
        other.load_state_dict({f"module.{k}": v for k, v in model.state_dict().items()})
        optimizer = amp.optim.SGD(other.parameters(), lr=1e-4)
        before = other.linear.bias.detach().clone()
        for _ in range(100):
            optimizer.zero_grad()
            amp.scaler.scale(other.linear.bias.float().sum()).backward()
            amp.scaler.step(optimizer)
        if level != "O3":
            assert (before - other.linear.bias).tolist() == pytest.approx([0.01] * 2, abs=2e-3), "masters"


@pytest.mark.heavy
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_pickled_model_loads_without_this_package(level: Any, launcher: Launcher, tmp_path: Path) -> None:
    from amp_runtime._distributed.batchnorm import synchronise_batch_norm

    amp.init(level, dtype="bf16")
    model = amp.prepare_model(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    synchronise_batch_norm(model, twice_differentiable=True)
    assert type(copy.deepcopy(model)[1]) is type(copy.copy(model[1])) is type(model[1]) is not nn.BatchNorm1d
    assert copy.deepcopy(model)[1].twice_differentiable
    torch.save(model, tmp_path / "model.pt")
    (tmp_path / "expected.pt").write_bytes(pickle.dumps(model.state_dict()))
    (tmp_path / "load.py").write_text(
        "import pickle, sys, torch\n"
        "sys.modules['amp_runtime'] = None\n"
        "model = torch.load('model.pt', weights_only=False)\n"
        "assert type(model[1]) is torch.nn.BatchNorm1d\n"
        "dtype = model[0].weight.dtype\n"
        "assert model(torch.ones(3, 4, dtype=dtype)).dtype is dtype\n"
        "state = pickle.load(open('expected.pt', 'rb'))\n"
        "assert all(torch.equal(state[k], v) for k, v in model.state_dict().items() if k[0] == '0')\n"
        "model.load_state_dict(state)\n"
    )
    finished = launcher.alone(tmp_path / "load.py", tmp_path)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_parameters_stay_the_same_objects_and_preparing_twice_changes_nothing(level: Any) -> None:
    amp.init(level, dtype="bf16")
    model = Many()
    before = list(model.parameters())
    assert amp.prepare_model(model) is model
    hooks = len(model._forward_hooks)
    assert amp.prepare_model(model) is model and len(model._forward_hooks) == hooks == 1
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    expected = {"O1": (torch.float32, torch.float32), "O2": (torch.bfloat16, torch.float32)}
    linear, norm = expected.get(level, (torch.bfloat16, torch.bfloat16))
    assert (model.linear.weight.dtype, model.norm.weight.dtype) == (linear, norm)
    assert model.norm.num_batches_tracked.dtype is torch.int64
    model(torch.ones(1, 4, dtype=torch.float32), scale=torch.ones(1))
    assert model.seen is linear


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("before", [True, False])
def test_o2_learns_steps_that_half_would_round_away(dtype: Any, before: bool) -> None:
    amp.init("O2", dtype=dtype)
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = amp.optim.SGD(model.parameters(), lr=1e-4) if before else None
    amp.prepare_model(model)
    optimizer = optimizer or amp.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(200):
        optimizer.zero_grad()
        amp.scaler.scale(model(torch.ones(1, 1)).sum()).backward()
        amp.scaler.unscale_(optimizer)
        amp.scaler.step(optimizer)
        amp.scaler.update()
    assert model.weight.dtype in (torch.float16, torch.bfloat16)
    assert abs(model.weight.item() - 0.98) < 0.005, "200 steps of 1e-4"


def test_o2_optimizer_state_is_float32_and_a_loaded_checkpoint_is_not_overwritten() -> None:
    amp.init("O2", dtype="bf16")
    model = amp.prepare_model(nn.Linear(2, 2))
    optimizer = amp.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        amp.scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        amp.scaler.step(optimizer)

    step()
    states = list(optimizer.state.values())
    assert len(states) == 2 and all(s["exp_avg"].dtype is torch.float32 for s in states)
    assert set(optimizer.state) == set(model.parameters())
    assert len(optimizer.state_dict()["state"]) == 2
    model.load_state_dict({"weight": torch.full((2, 2), 8.0), "bias": torch.zeros(2)})
    step()
    assert (model.weight > 7).all()


def test_o2_keeps_the_masters_of_a_part_that_was_prepared_before() -> None:
    amp.init("O2", dtype="bf16")
    part = nn.Linear(1, 1, bias=False)
    nn.init.constant_(part.weight, 1 / 3)
    full = part.weight.detach().clone()
    amp.prepare_model(part)
    model = amp.prepare_model(nn.Sequential(part))
    optimizer = amp.optim.SGD(model.parameters(), lr=0.0)
    seen: list[torch.Tensor] = []
    optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["params"][0].detach().clone()))
    amp.scaler.scale(model(torch.ones(1, 1)).sum()).backward()
    amp.scaler.step(optimizer)
    assert torch.equal(seen[0], full)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_edited_weights_are_found_in_both_ways(dtype: torch.dtype) -> None:
    from amp_runtime._precision.masters import _differ_at_once, _differ_one_by_one

    masters = [torch.tensor(v) for v in ([1 / 3, 2e-8], [1e5, 0.0], [[1e-30]], [float("nan")], 0.1)]
    parameters = [master.to(dtype) for master in masters]
    parameters[0][1] += 2**-24
    parameters[4].zero_()
    for find in (_differ_one_by_one, _differ_at_once):
        found = find([master.to(dtype) for master in masters], parameters)
        assert (found[0], found[2], found[4]) == (True, False, True), "infinity and NaN may be looked at again"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("at_once", [False, True])
def test_o2_follows_what_the_script_writes_into_the_weights(
    dtype: Any, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amp_runtime._precision import masters as masters_module

    if at_once:
        monkeypatch.setattr(masters_module, "_differ_one_by_one", masters_module._differ_at_once)
    amp.init("O2", dtype=dtype, loss_scale=8)
    model = nn.Linear(6, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1 / 3, -1 / 3, 0.001, 0.7, float("nan"), 0.2]]))
    full = model.weight.detach().clone()
    amp.prepare_model(model)
    empty = nn.Parameter(torch.empty(0))
    optimizer = amp.optim.SGD([*model.parameters(), empty], lr=0.0)

    def step() -> torch.Tensor:
        seen = []
        optimizer.zero_grad()
        amp.scaler.scale(model.weight[0, :4].sum()).backward()
        hook = optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["params"][0].clone()))
        amp.scaler.step(optimizer)
        hook.remove()
        return seen[0].detach()

    for _ in range(2):
        assert torch.equal(step().nan_to_num(9), full.nan_to_num(9)), "untouched weights keep their digits"
    version = model.weight._version
    model.weight.data.clamp_(-0.25, 0.25)
    model.weight.data[0, 4] = 0.5
    assert model.weight._version == version
    clipped = model.weight.detach().float()
    expected = torch.where(torch.tensor([[True, True, False, True, True, False]]), clipped, full)
    for _ in range(2):
        assert torch.equal(step(), expected)
        assert torch.equal(model.weight.float(), clipped)
    model.weight.data.zero_()
    assert step().count_nonzero() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_uses_the_half_type_of_init(dtype: torch.dtype) -> None:
    x = torch.ones(2, 2)
    with amp.autocast():
        assert (x @ x).dtype is torch.float32, "inert before init"
    amp.init("O1", dtype="fp16" if dtype is torch.float16 else "bf16")
    with amp.autocast():
        assert (x @ x).dtype is dtype
        with amp.autocast(enabled=False):
            assert (x @ x).dtype is torch.float32
        assert (x @ x).dtype is dtype
    assert (x @ x).dtype is torch.float32
    with amp.autocast(dtype=torch.bfloat16):
        assert (x @ x).dtype is torch.bfloat16


def test_one_autocast_object_may_be_nested_and_leaves_by_exceptions() -> None:
    amp.init("O1", dtype="bf16")
    region = amp.autocast()
    with region, region:
        pass
    with pytest.raises(KeyError), region:
        raise KeyError
    assert not torch.is_autocast_enabled("cpu")


def test_a_decorator_read_before_init_follows_it() -> None:
    @amp.autocast()
    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    x = torch.ones(2, 2)
    assert product(x).dtype is torch.float32
    amp.init("O1", dtype="bf16")
    assert product(x).dtype is torch.bfloat16
    assert product.__name__ == "product"


def test_autocast_refuses_a_device_and_a_full_type() -> None:
    with pytest.raises(TypeError, match="'cuda'"):
        amp.autocast("cuda")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"torch.float32.*torch.bfloat16"):
        amp.autocast(dtype=torch.float32)


def test_auto_is_bfloat16_on_the_cpu_and_scales_nothing() -> None:
    amp.init("O1")
    amp.prepare_model(model := nn.Linear(1, 1))
    assert amp.scaler.is_enabled() is False
    with amp.autocast():
        assert F.linear(torch.ones(1, 1), model.weight).dtype is torch.bfloat16


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_bce_runs_in_float32_inside_a_region(dtype: Any) -> None:
    amp.init("O1", dtype=dtype)
    criterion = nn.BCELoss()
    assert amp.float_function(criterion) is criterion
    assert amp.float_function(criterion) is criterion
    linear = nn.Linear(3, 1)
    with amp.autocast():
        p = torch.sigmoid(linear(torch.ones(2, 3)))
        assert p.dtype is not torch.float32
        loss = criterion(p, torch.ones(2, 1))
        again = amp.float_function(F.binary_cross_entropy)(p, target=torch.ones(2, 1))
        assert amp.float_function(lambda x: x @ x)(torch.ones(2, 2)).dtype is torch.float32
        assert torch.is_autocast_enabled("cpu"), "the region goes on"
    assert loss.dtype is again.dtype is torch.float32 and torch.equal(loss, again)
    loss.backward()
    assert linear.weight.grad is not None
    for other in (copy.deepcopy(criterion), pickle.loads(pickle.dumps(criterion))):
        with amp.autocast():
            assert other is not criterion and torch.equal(other(p, torch.ones(2, 1)), loss)
            assert vars(other)["forward"].module is other


def test_half_function_runs_in_half() -> None:
    product = amp.half_function(torch.matmul)
    x = torch.ones(2, 2)
    assert product(x, x).dtype is torch.float32, "inert before init"
    amp.init("O1", dtype="bf16")
    assert product(x, x).dtype is torch.bfloat16


def test_checkpoints_of_data_parallel_load() -> None:
    amp.init("O1", dtype="bf16")
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    saved = {f"module.{k}": v.clone() for k, v in plain.state_dict().items()}
    model = amp.prepare_model(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    model.load_state_dict(saved)
    assert torch.equal(model[0].weight, plain[0].weight)
    assert "module.0.weight" in saved, "the caller's dictionary is left alone"
    model.load_state_dict(plain.state_dict())
    with pytest.raises(RuntimeError, match=r"other\.0\.weight"):
        model.load_state_dict({f"other.{k}": v for k, v in plain.state_dict().items()})


def test_the_module_prefix_is_dropped_from_a_state_dict() -> None:
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    wrapped = nn.DataParallel(plain).state_dict()
    keys = list(wrapped)
    own = amp.without_module_prefix(wrapped)
    assert type(own) is type(wrapped) and list(own) == list(plain.state_dict())
    assert all(own[key].data_ptr() == value.data_ptr() for key, value in plain.state_dict().items())
    assert dict(own._metadata) == dict(plain.state_dict()._metadata)  # type: ignore[attr-defined]
    assert list(wrapped) == keys and "module.1" in wrapped._metadata, "the argument is left alone"
    assert amp.without_module_prefix({"module.a": 1, "module.module.b": 2}) == {"a": 1, "module.b": 2}
    for kept in (own, {}, {"module.a": 1, "b": 2}, {"module": 1}, {"model": wrapped}, {0: 1}):
        assert amp.without_module_prefix(kept) is kept  # type: ignore[type-var]
    with pytest.raises(TypeError, match="state dict"):
        amp.without_module_prefix(plain)  # type: ignore[type-var]


def test_a_module_prefix_of_the_models_own_is_kept() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(1, 1)

    amp.init("O1", dtype="bf16")
    model = amp.prepare_model(Holder())
    model.load_state_dict(Holder().state_dict())


def test_synchronised_batch_norm_alone_is_batch_norm() -> None:
    from amp_runtime._distributed.batchnorm import synchronise_batch_norm

    amp.init("O1", dtype="bf16")
    plain = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, affine=False, track_running_stats=False))
    changed = copy.deepcopy(plain)
    synchronise_batch_norm(changed)
    assert isinstance(changed[0], amp.SyncBatchNorm)
    x = torch.randn(5, 3)
    assert torch.equal(changed(x), plain(x))
    assert torch.equal(changed.eval()(x), plain.eval()(x))
    with pytest.raises(ValueError, match="4D"):
        changed[0].train()(torch.ones(1, 3, 1, 1))


def test_a_second_init_changes_precision_and_the_same_one_changes_nothing() -> None:
    amp.init("O1", dtype="fp16")
    amp.scaler.update(8.0)
    amp.init("O1", dtype="fp16")
    assert amp.scaler.get_scale() == 8.0
    amp.init("O1", dtype="fp16", loss_scale=4)
    assert amp.scaler.get_scale() == 4.0
    amp.init("O1", dtype="bf16")
    assert amp.scaler.get_scale() == 1.0


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_a_model_in_ddp_cannot_become_half(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrapped(nn.parallel.DistributedDataParallel):
        def __init__(self) -> None:  # without a process group
            nn.Module.__init__(self)

    amp.init(level)
    with pytest.raises(RuntimeError, match="wrapped in Wrapped already"):
        amp.prepare_model(Wrapped())


def test_bfloat16_becomes_float32_in_numpy_while_a_level_is_on() -> None:
    numpy = pytest.importorskip("numpy")
    torchs = torch.Tensor.numpy
    amp.init("O0")
    assert torch.Tensor.numpy is torchs
    for level in ("O1", "O2", "O3"):
        amp.init(level, dtype="bf16")
        linear = nn.Linear(2, 1)
        with amp.autocast():
            out = linear(torch.ones(1, 2))
            assert out.dtype is torch.bfloat16
            for array in (
                out.detach().numpy(),
                out.numpy(force=True),
                numpy.asarray(out.detach()),
                numpy.array([out.detach()])[0],
            ):
                assert array.dtype == numpy.float32 and array.tolist() == out.tolist()
            assert numpy.asarray(out.detach(), dtype="int64").dtype == numpy.int64
            with pytest.raises(RuntimeError, match="requires grad"):
                out.numpy()
        with pytest.raises(TypeError, match="meta"):
            torch.ones(1, dtype=torch.bfloat16, device="meta").numpy()
        full = torch.ones(2)
        full.numpy()[0] = 3.0
        assert full.tolist() == [3.0, 1.0], "other types still share their memory"
        assert torch.ones(1, dtype=torch.float16).numpy().dtype == numpy.float16
        assert torch.Tensor.numpy.__name__ == "numpy" and torch.Tensor.numpy.__doc__ == torchs.__doc__
    amp.init("O0")
    assert torch.Tensor.numpy is torchs and "numpy" not in vars(torch.Tensor)
    amp.init("O1")
    amp.shutdown()
    assert torch.Tensor.numpy is torchs
    with pytest.raises(TypeError, match="BFloat16"):
        torch.ones(1, dtype=torch.bfloat16).numpy()


def test_another_replacement_of_numpy_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torchs = torch.Tensor.numpy
    theirs = lambda self, **options: torchs(self, **options)  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "numpy", theirs)
    amp.init("O1")
    assert torch.ones(1, dtype=torch.bfloat16).numpy().tolist() == [1.0]
    amp.shutdown()
    assert torch.Tensor.numpy is theirs
    amp.init("O1")
    ours = torch.Tensor.numpy
    outer = lambda self, **options: ours(self, **options)  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "numpy", outer)
    amp.shutdown()
    assert torch.Tensor.numpy is outer
    with pytest.raises(TypeError, match="BFloat16"):
        torch.ones(1, dtype=torch.bfloat16).numpy()
    torch.Tensor.numpy = ours  # type: ignore[method-assign]
    amp.init("O1")
    amp.shutdown()


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_the_names_of_data_parallel_are_kept(level: str, tmp_path: Path) -> None:
    amp.init(level, dtype="bf16")
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    wanted = nn.DataParallel(copy.deepcopy(plain)).state_dict()
    model = amp.prepare_model(amp.keep_module_prefix(plain))
    assert amp.prepare_model(model) is model and model.module is plain
    assert isinstance(model, nn.DataParallel) and amp.unwrap(model) is plain
    state = model.state_dict()
    assert list(state) == list(wanted) == [f"module.{name}" for name in plain.state_dict()]
    assert all(value.dtype == wanted[name].dtype for name, value in state.items())
    assert [name for name, _ in model.named_parameters()] == list(dict(nn.DataParallel(plain).named_parameters()))
    model.load_state_dict({name: value + 1 for name, value in wanted.items()})
    assert torch.equal(model.state_dict()["module.0.bias"], wanted["module.0.bias"] + 1)
    with amp.autocast():
        assert model(torch.ones(4, 2)).dtype is torch.float32
    torch.save(model, tmp_path / "whole.pt")
    assert type(torch.load(tmp_path / "whole.pt", weights_only=False)) is nn.DataParallel
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        amp.keep_module_prefix(state)  # type: ignore[arg-type]


def test_a_model_with_the_names_of_data_parallel_is_given_its_inputs_on_its_own_device():
    model = copy.deepcopy(amp.keep_module_prefix(nn.Bilinear(2, 3, 4, device="meta")))
    assert model(torch.ones(5, 2), input2=torch.ones(5, 3)).is_meta
    here = amp.keep_module_prefix(nn.Identity())
    x = torch.ones(5, 2)
    assert here(x) is x
