"""Half-precision copies for deployment."""

from __future__ import annotations

import io
from typing import Any

import amp_runtime as amp
import pytest
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.gn = nn.GroupNorm(2, 4)
        self.inorm = nn.InstanceNorm2d(4, affine=True)
        self.head = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.RMSNorm(8), nn.GELU(), nn.Linear(8, 3))
        self.register_buffer("shift", torch.ones(3))
        self.seen: Any = None

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        h = self.inorm(self.gn(self.bn(self.conv(x))))
        out = self.head(h.mean((2, 3))) * scale + self.shift
        self.seen = (x.dtype, h.dtype, out.dtype)
        return {"logits": out, "index": out.argmax(1)}


def trained(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    model = Net()
    for _ in range(3):
        model(torch.randn(4, 2, 5, 5))
    return model


@pytest.mark.parametrize("dtype", ["fp16", "bf16", torch.float16, "auto"])
def test_weights_are_half_and_norms_are_not(dtype: Any) -> None:
    model = trained()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x = torch.randn(3, 2, 5, 5)
    deployed = amp.inference(model, dtype, check_inputs=x)
    half = torch.float16 if dtype in ("fp16", torch.float16) else torch.bfloat16
    assert type(deployed) is Net and not deployed.training
    for name, tensor in deployed.state_dict().items():
        norm = name.split(".")[0] in ("bn", "gn", "inorm") or name.startswith(("head.1", "head.2"))
        if tensor.is_floating_point():
            assert tensor.dtype is (torch.float32 if norm else half), name
    out = deployed(x)
    assert deployed.seen == (half, half, half) and out["logits"].dtype is torch.float32
    assert out["index"].dtype is torch.int64 and not out["logits"].requires_grad
    wanted = model.eval()(x)["logits"]
    assert (out["logits"] - wanted).abs().max() <= 8 * torch.finfo(half).eps * wanted.abs().max()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items()), "left as it was"
    assert model.conv.weight.requires_grad and model.training is False


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_prepared_model_is_rounded_from_its_float32_weights(level: Any) -> None:
    amp.init(level, dtype="bf16")
    model = amp.prepare_model(trained())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with amp.autocast():
        amp.scaler.scale(model(torch.randn(4, 2, 5, 5))["logits"].sum()).backward()
    amp.scaler.step(optimizer)
    x = torch.randn(3, 2, 5, 5)
    deployed = amp.inference(model, "fp16", check_inputs=x)
    state = model.state_dict()
    assert torch.equal(deployed.conv.weight, state["conv.weight"].half())
    assert torch.equal(deployed.bn.running_mean, state["bn.running_mean"])
    with torch.no_grad():
        out = deployed(x)["logits"]
    assert out.dtype is torch.float32 and deployed.seen[0] is torch.float16
    amp.shutdown()
    assert torch.equal(deployed(x)["logits"], out), "without amp.init"
    saved = io.BytesIO()
    torch.save(deployed, saved)
    saved.seek(0)
    assert torch.equal(torch.load(saved, weights_only=False)(x)["logits"], out)


def test_training_goes_on_after_a_copy_was_deployed() -> None:
    amp.init("O2", dtype="bf16")
    model = amp.prepare_model(nn.Linear(4, 2))
    deployed = amp.inference(model, check_inputs=torch.ones(1, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    amp.scaler.scale(model(torch.ones(1, 4)).sum()).backward()
    amp.scaler.step(optimizer)
    assert (deployed.weight.float() - model.state_dict()["weight"]).abs().max() > 0.4


@pytest.mark.parametrize("kind", ["transformer", "lstm"])
def test_attention_and_recurrent_models(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "transformer":
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        model: nn.Module = nn.TransformerEncoder(layer, 2)
    else:
        model = nn.LSTM(16, 8, batch_first=True)
    x = torch.randn(2, 5, 16)
    deployed = amp.inference(model, "bf16", check_inputs=[x, (x[:1],)])
    report = amp.check_inference(model, deployed, x)
    assert 0 < report.difference <= report.tolerance == 0.0625 and model.training


def test_tied_weights_stay_tied_and_a_float32_module_keeps_its_own() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids))

    ids = torch.tensor([1, 2, 3])
    deployed = amp.inference(Tied(), "bf16", check_inputs=ids)
    assert deployed.head.weight is deployed.embed.weight and deployed.head.weight.dtype is torch.bfloat16
    deployed = amp.inference(Tied(), "bf16", check_inputs={"ids": ids}, keep_fp32="head")
    assert (deployed.embed.weight.dtype, deployed.head.weight.dtype) == (torch.bfloat16, torch.float32)
    deployed = amp.inference(Tied(), "bf16", check_inputs={"ids": ids}, keep_fp32=[nn.Embedding])
    assert (deployed.embed.weight.dtype, deployed.head.weight.dtype) == (torch.float32, torch.bfloat16)


class Cancelling(nn.Module):
    """Loses its digits in the block that subtracts nearly equal numbers."""

    class Delta(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset = nn.Parameter(torch.tensor(1000.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + self.offset) - self.offset

    def __init__(self) -> None:
        super().__init__()
        self.first, self.delta, self.last = nn.Linear(4, 4), self.Delta(), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.delta(self.first(x)))


def test_the_first_module_that_differs_is_named_and_can_be_kept_in_float32() -> None:
    torch.manual_seed(0)
    model, x = Cancelling(), torch.randn(8, 4)
    with pytest.raises(amp.InferenceMismatchError, match=r"delta \(Delta\).*keep_fp32=\['delta'\]") as caught:
        amp.inference(model, "fp16", check_inputs=x)
    assert caught.value.module == "delta" and caught.value.difference > 0.0078
    assert amp.inference(model, "fp16", check_inputs=x, tolerance=10.0)(x).isfinite().all()
    deployed = amp.inference(model, "fp16", check_inputs=x, keep_fp32=[Cancelling.Delta])
    report = amp.check_inference(model, deployed, x)
    assert report.module != "delta" and report.difference < 0.0078


def test_an_overflow_is_an_infinite_difference() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    nn.init.constant_(model[0].weight, 3e4)
    with pytest.raises(amp.InferenceMismatchError, match="first module that differs too much is 0") as caught:
        amp.inference(model, "fp16", check_inputs=torch.full((1, 2), 3.0))
    assert caught.value.difference == float("inf")
    amp.inference(model, "bf16", check_inputs=torch.full((1, 2), 3.0))


def test_the_check_draws_no_random_number_and_keeps_modes() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2).eval())
    before = torch.get_rng_state()
    amp.inference(model, "bf16", check_inputs=torch.ones(1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert [part.training for part in model] == [True, True, False] and model.training


def test_wrong_arguments_of_inference() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"amp.inference got function"):
        amp.inference(lambda x: x)  # type: ignore[type-var]
    with pytest.raises(ValueError, match=r"amp.inference got dtype='int8'; allowed: 'auto', 'fp16', 'bf16'"):
        amp.inference(model, "int8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"'head'.*allowed: module classes.*: 0"):
        amp.inference(model, keep_fp32=["head"])
    with pytest.raises(ValueError, match=r"tolerance=-1"):
        amp.inference(model, check_inputs=torch.ones(1, 2), tolerance=-1)
    with pytest.raises(ValueError, match=r"inputs=\[\]"):
        amp.inference(model, check_inputs=[])
    with pytest.raises(TypeError, match="structure"):
        amp.check_inference(model, nn.Sequential(nn.Linear(2, 3)), torch.ones(1, 2))
