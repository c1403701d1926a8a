"""Every level, half type, optimizer and way of clipping on a CPU that refuses what CUDA refuses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import amp_runtime as amp
import pytest
import torch
import torch.nn.functional as F
from amp_runtime._core import capabilities
from amp_runtime.apex import amp as apex_amp
from amp_runtime.apex import optimizers as apex_optimizers
from amp_runtime.apex.fp16_utils import FP16_Optimizer, network_to_half
from apex_scripts import reset
from like_cuda import LikeCuda, kernels
from torch import nn

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TORCHS = {
    "Adadelta": {}, "Adafactor": {}, "Adam": {}, "AdamW": {}, "Adamax": {}, "ASGD": {}, "NAdam": {}, "RAdam": {},
    "RMSprop": {"momentum": 0.9}, "Rprop": {}, "SGD": {"momentum": 0.9}, "Adagrad": {},
}  # fmt: skip
MODES = {
    "Adam fused": {"fused": True}, "SGD fused": {"fused": True, "momentum": 0.9}, "AdamW for-loop": {"foreach": False},
    "AdamW amsgrad": {"amsgrad": True}, "Adam capturable": {"capturable": True},
}  # fmt: skip


TRIED: dict[str, dict[Any, Any]] = {"_complaints": {}, "_complete": {}, "_agreed": {}}
"""What the trials of operations found on the device, which is the same in every test here, and not the CPU."""


@pytest.fixture(autouse=True)
def on_one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is small takes longer on several; Apex's side is as before ``amp.initialize``."""
    for name, found in TRIED.items():
        monkeypatch.setattr(capabilities, name, found)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    reset()
    yield
    reset()
    torch.set_num_threads(threads)


@pytest.fixture
def cuda() -> Iterator[LikeCuda]:
    with LikeCuda() as cuda:
        yield cuda


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.PReLU(), nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 3)
    return nn.Sequential(*layers).to(amp.device())


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    device = amp.device()
    return torch.linspace(-1, 1, 4 * 32).view(4, 2, 4, 4).to(device), torch.tensor([0, 1, 2, 0]).to(device)


def native(name: str) -> Callable[[Any], Any]:
    kind = getattr(amp.optim, name)
    if name == "LARC":
        return lambda parameters: kind(torch.optim.SGD(parameters, lr=0.01, momentum=0.9))
    return lambda parameters: kind(parameters, lr=0.01)


def of_torch(name: str, **options: Any) -> Callable[[Any], Any]:
    kind = getattr(torch.optim, name.partition(" ")[0])
    eps = inspect.signature(kind).parameters.get("eps")
    if eps is not None and isinstance(eps.default, float):
        options["eps"] = 1e-4  # the default is 0 in float16
    return lambda parameters: kind(parameters, lr=0.01, **options)


LEVELS = [("O0", "bf16"), *((level, dtype) for level in ("O1", "O2", "O3") for dtype in HALVES)]
OPTIMIZERS = {name: native(name) for name in amp.optim.__all__}
OPTIMIZERS |= {f"torch {name}": of_torch(name, **options) for name, options in (TORCHS | MODES).items()}


def train(model: nn.Module, optimizer: Any, clip: Callable[[nn.Module, Any], Any] | None = None) -> None:
    """Two steps, after which the weights have moved and are finite."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    x, y = batch()
    ema = amp.EMA(model)
    for _ in range(2):
        optimizer.zero_grad()
        with amp.autocast():
            loss = F.cross_entropy(model(x).float(), y)
        amp.scaler.scale(loss).backward()
        if clip is not None:
            clip(model, optimizer)
        amp.scaler.step(optimizer)
        amp.scaler.update()
        ema.update()
    moved(model, before)


def moved(model: nn.Module, before: list[torch.Tensor]) -> None:
    after = [parameter.detach() for parameter in model.parameters()]
    assert all(bool(torch.isfinite(parameter).all()) for parameter in after)
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("level", "dtype"), [("O0", "bf16"), ("O1", "bf16"), ("O2", "fp16"), ("O2", "bf16"), ("O3", "bf16")]
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(cuda: LikeCuda, name: str, level: str, dtype: str) -> None:
    amp.init(level, dtype=dtype, init_scale=8.0)
    model = amp.prepare_model(net())
    train(model, OPTIMIZERS[name](model.parameters()))


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "torch Adam"])
def test_on_torch_2_4(name: str) -> None:
    """Whose kernels are fewer; the runtime asks the installed torch, and what it may not ask is of that version."""
    assert "says" not in kernels("2.4.1")["_fused_adagrad_"]
    assert "_fused_adagrad_" in kernels("2.13.0+cpu")
    if name == "Adagrad" and torch.__version__ >= "2.13":
        pytest.skip("the runtime knows that this torch has the kernel")
    with LikeCuda("2.4.0"):
        amp.init("O2", dtype="bf16")
        model = amp.prepare_model(net())
        train(model, OPTIMIZERS[name](model.parameters()))


@pytest.mark.parametrize("name", ["AdamW", "SGD", "FusedAdam", "LAMB", "torch AdamW", "torch SGD"])
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_models_that_are_loaded_in_bfloat16(cuda: LikeCuda, name: str, level: str) -> None:
    amp.init(level, dtype="bf16")
    model = amp.prepare_model(net().to(torch.bfloat16))
    train(model, OPTIMIZERS[name](model.parameters()))


@pytest.mark.parametrize("keep_batchnorm_fp32", [True, False])
@pytest.mark.parametrize("master_weights", [True, False])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("level", ["O2", "O3"])
def test_masters(cuda: LikeCuda, level: str, dtype: str, master_weights: bool, keep_batchnorm_fp32: bool) -> None:
    amp.init(level, dtype=dtype, master_weights=master_weights, keep_batchnorm_fp32=keep_batchnorm_fp32, init_scale=8.0)
    for name in ("SGD", "FusedAdam", "torch AdamW"):
        model = amp.prepare_model(net())
        train(model, OPTIMIZERS[name](model.parameters()))


def unscale_and_clip(model: nn.Module, optimizer: Any) -> None:
    amp.scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)


CLIPPING: dict[str, Callable[[nn.Module, Any], Any]] = {
    "norm": lambda model, optimizer: amp.clip_grad_norm_(model.parameters(), 1.0),
    "infinity norm": lambda model, optimizer: amp.clip_grad_norm_(model.parameters(), 1.0, float("inf")),
    "part": lambda model, optimizer: amp.clip_grad_norm_(list(model.parameters())[:2], 1.0),
    "value": lambda model, optimizer: amp.clip_grad_value_(model.parameters(), 0.1),
    "masters": unscale_and_clip,
}


@pytest.mark.parametrize("combine_grad", [False, True])
@pytest.mark.parametrize(
    ("level", "dtype"), [("O0", "bf16"), *((f"O{k}", dtype) for k in (1, 2, 3) for dtype in HALVES)]
)
def test_clipping(cuda: LikeCuda, level: str, dtype: str, combine_grad: bool) -> None:
    amp.init(level, dtype=dtype, combine_grad=combine_grad, init_scale=8.0)
    for clip in CLIPPING.values():
        model = amp.prepare_model(net())
        train(model, amp.optim.AdamW(model.parameters(), lr=0.01), clip)


@pytest.mark.parametrize(
    ("level", "dtype"), [("O0", "bf16"), *((f"O{k}", dtype) for k in (1, 2, 3) for dtype in HALVES)]
)
def test_closures(cuda: LikeCuda, level: str, dtype: str) -> None:
    amp.init(level, dtype=dtype)
    model = amp.prepare_model(net())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    x, y = batch()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        with amp.autocast():
            loss = F.cross_entropy(model(x).float(), y)
        amp.scaler.scale(loss).backward()
        return loss

    for _ in range(2):
        amp.scaler.step(optimizer, closure)
        amp.scaler.update()
    moved(model, before)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_an_overflow_skips_the_step(cuda: LikeCuda, level: str, dtype: str) -> None:
    amp.init(level, dtype=dtype, init_scale=8.0)
    for name in ("AdamW", "FusedAdam", "LAMB", "torch SGD"):
        model = amp.prepare_model(net())
        optimizer = OPTIMIZERS[name](model.parameters())
        train(model, optimizer)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        amp.scaler.scale(model(batch()[0]).float().sum() * torch.inf).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
        assert not amp.scaler.stepped
        assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(("level", "buffers"), [("O1", "average"), ("O2", "copy"), ("O3", "average")])
def test_an_average_follows_the_steps_that_are_made_and_waits_for_none(
    cuda: LikeCuda, level: str, buffers: Any
) -> None:
    amp.init(level, dtype="fp16", init_scale=8.0)
    model = amp.prepare_model(net())
    optimizer = amp.optim.AdamW(model.parameters(), lr=0.01)
    ema, waiting = (amp.EMA(model, 0.5, buffers=buffers) for _ in range(2))
    x, y = batch()
    for number in range(5):
        optimizer.zero_grad()
        with amp.autocast():
            loss = F.cross_entropy(model(x).float(), y)
        amp.scaler.scale(loss * (torch.inf if number == 3 else 1.0)).backward()
        cuda.waits.clear()
        amp.scaler.step(optimizer)
        amp.scaler.update()
        ema.update()
        assert cuda.waits == [] or number == 0  # when state is made
        assert amp.scaler.stepped is (number != 3)
        waiting.update()
    assert ema.updates == waiting.updates == 4
    first, second = ema.state_dict(), waiting.state_dict()
    for name, average in first.items():
        torch.testing.assert_close(average, second[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_apex(cuda: LikeCuda, monkeypatch: pytest.MonkeyPatch, level: str, dtype: str) -> None:
    monkeypatch.setenv("AMP_DTYPE", dtype)
    for make in (
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        lambda parameters: apex_optimizers.FusedAdam(parameters, lr=0.01),
        lambda parameters: apex_optimizers.FusedLAMB(parameters, lr=0.01),
        lambda parameters: apex_optimizers.FusedSGD(parameters, lr=0.01, momentum=0.9),
    ):
        reset()
        model = net()
        model, optimizer = apex_amp.initialize(model, make(model.parameters()), opt_level=level, verbosity=0)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        x, y = batch()
        for _ in range(2):
            optimizer.zero_grad()
            with apex_amp.scale_loss(F.cross_entropy(model(x).float(), y), optimizer) as scaled:
                scaled.backward()
            torch.nn.utils.clip_grad_norm_(apex_amp.master_params(optimizer), 1.0)
            optimizer.step()
        moved(model, before)


@pytest.mark.parametrize("dynamic", [False, True])
def test_fp16_utils(cuda: LikeCuda, dynamic: bool) -> None:
    model = network_to_half(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).to("cuda"))
    optimizer = FP16_Optimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), static_loss_scale=8.0, dynamic_loss_scale=dynamic,
        dynamic_loss_args={"init_scale": 8.0}, verbose=False,
    )  # fmt: skip
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(2):
        optimizer.zero_grad()
        optimizer.backward(model(torch.ones(5, 4, device="cuda")).float().square().mean())
        optimizer.clip_master_grads(1.0)
        optimizer.step()
    moved(model, before)


# ---------------------------------------------------------------------- what the mode itself refuses


def test_bfloat16_is_refused_where_every_release_refuses_it(cuda: LikeCuda) -> None:
    """https://github.com/pytorch/pytorch/issues/127176"""
    found, scale = torch.zeros(1, device="cuda"), torch.ones(1, device="cuda")
    for dtype in (torch.float16, torch.float32):
        torch._amp_foreach_non_finite_check_and_unscale_([torch.ones(2, device="cuda", dtype=dtype)], found, scale)
    refused = [torch.ones(2, device="cuda"), torch.ones(2, device="cuda", dtype=torch.bfloat16)]
    message = "\"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'"
    with pytest.raises(NotImplementedError, match=message):
        torch._amp_foreach_non_finite_check_and_unscale_(refused, found, scale)
    for release in ("2.4", "2.7", "2.13", "2.15"):
        assert kernels(release)["_amp_foreach_non_finite_check_and_unscale_"]["refuses"] == ["bfloat16"]


def test_the_table_is_that_of_the_release_before(cuda: LikeCuda) -> None:
    assert kernels("2.12.1") == kernels("2.7") != kernels("2.13")


def test_integers_are_refused_where_cublas_does(cuda: LikeCuda) -> None:
    numbers = torch.ones(2, 2, dtype=torch.int64, device="cuda")
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        torch.mm(numbers, numbers)
    on_host = torch.ones(2, 2, dtype=torch.int64)
    assert torch.mm(on_host, on_host).sum() == 8


def test_what_lies_on_the_host_is_refused_among_others(cuda: LikeCuda) -> None:
    here, there = torch.ones(2), torch.ones(2, device="cuda")
    assert (here.device.type, there.device.type, (there * torch.tensor(2.0)).device.type) == ("cpu", "cuda", "cuda")
    assert (here.sum().is_cuda, there.sum().is_cuda, torch.zeros_like(there).is_cuda) == (False, True, True)
    for refused in (
        lambda: here + there,
        lambda: torch.stack([here.sum(), there.sum()]),
        lambda: here.sum().add_(there.sum()),
        lambda: torch._foreach_mul([there], torch.tensor(2.0)),
        lambda: torch._amp_foreach_non_finite_check_and_unscale_([there], torch.zeros(1), there[:1]),
    ):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            refused()
    assert torch.equal((here.to(there) + there).cpu(), torch.full((2,), 2.0))
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        there.numpy()


def test_what_fused_kernels_take(cuda: LikeCuda) -> None:
    def step(dtype: torch.dtype = torch.float32, count: torch.dtype = torch.float32, device: str = "cuda") -> None:
        value, *others = (torch.ones(2, device="cuda") for _ in range(4))
        torch._fused_adam_(
            [value], [others[0].to(dtype)], [others[1]], [others[2]], [], [torch.ones((), dtype=count, device=device)],
            lr=0.1, beta1=0.9, beta2=0.9, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip

    step()
    with pytest.raises(RuntimeError, match="must have same dtype, device, and layout"):
        step(dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="reads steps, grad_scale and found_inf as float32"):
        step(count=torch.int32)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        step(device="cpu")


def test_waits_are_noted(cuda: LikeCuda) -> None:
    there = torch.full((2,), 3.0, device="cuda")
    there.mul_(2.0).sum().square_()
    torch.where(there > 0, there, 1.0)
    torch.ones(2).add_(1).tolist()
    assert cuda.waits == []
    there.sum().item()
    there.tolist()
    there.cpu()
    torch.ones(2).to("cuda")
    torch.tensor(1.0, device="cuda")
    torch.as_tensor(1.0).to(there)
    there.copy_(torch.ones(2))
    there[there > 0]
    kinds = [wait.partition(" at ")[0] for wait in cuda.waits]
    assert kinds == [
        "_local_scalar_dense", "tolist", "to the host", "to the device", "tensor", "to the device", "copy_", "index",
    ]  # fmt: skip
    assert all("test_runtime_like_cuda.py:" in wait for wait in cuda.waits)
