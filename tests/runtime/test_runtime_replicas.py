"""Replicas of ``nn.DataParallel``, as its threads run them; the CPU stands in for the several devices."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Iterator
from typing import Any

import amp_runtime as amp
import pytest
import torch
import torch.nn.functional as F
from torch import nn

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen: list[tuple[torch.dtype, torch.dtype]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x)
        self.seen.append((h.dtype, F.softmax(h, dim=0).dtype))
        if x.isnan().any():
            raise ValueError("no number")
        return h


class Parallel(nn.DataParallel[Any]):
    """torch's wrapper: two replicas on the CPU, in threads that are told what torch tells them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.device_ids = [0, 1]  # none, where there is no GPU

    def forward(self, x: torch.Tensor) -> Any:
        replicas = [self._replica(self.module) for _ in range(2)]
        enabled = torch.is_autocast_enabled("cpu")
        results: list[Any] = [None, None]

        def work(i: int) -> None:
            with torch.autocast("cpu", enabled=enabled):
                results[i] = replicas[i](x)
            results[i] = results[i], torch.get_autocast_dtype("cpu")

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        outputs = [result[0] for result in results]
        assert all(result[1] is torch.bfloat16 for result in results), "the thread is left as it was"
        return torch.stack(outputs)

    def _replica(self, module: nn.Module) -> nn.Module:
        made = module._replicate_for_data_parallel()
        for name, child in module._modules.items():
            assert child is not None
            setattr(made, name, self._replica(child))
        for name, parameter in module._parameters.items():
            setattr(made, name, parameter)
        return made


@pytest.fixture(autouse=True)
def several_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cpu, "device_count", lambda: 2)
    yield


def spread(net: Net, way: str) -> nn.Module:
    if way == "before":
        model: nn.Module = amp.prepare_model(Parallel(net))
    elif way == "after":
        model = Parallel(amp.prepare_model(net))
    else:
        model = amp.prepare_model(nn.Sequential(Parallel(net)))
    return model


@pytest.mark.parametrize("way", ["before", "after", "part"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_replicas_run_in_the_dtype_and_with_the_casts_of_the_region(way: str, dtype: str) -> None:
    amp.init("O1", dtype=dtype)
    net = Net()
    model = spread(net, way)
    keys = list(model.state_dict())
    with amp.autocast():
        out = model(torch.ones(3, 4))
    assert net.seen == [(HALF[dtype], torch.float32)] * 2
    assert out.dtype is torch.float32
    out.sum().backward()
    assert net.layer.weight.grad is not None
    assert list(model.state_dict()) == keys


def test_a_model_that_is_moved_to_several_gpus_after_it_was_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    amp.init("O1", dtype="fp16")
    net = Net()
    model = amp.prepare_model(net)
    monkeypatch.setattr(torch.cpu, "device_count", lambda: 2)
    with amp.autocast():
        Parallel(model)(torch.ones(3, 4))
    assert net.seen == [(torch.float16, torch.float32)] * 2


@pytest.mark.parametrize("way", ["before", "part"])
def test_a_region_of_its_own_dtype_is_told_to_the_replicas(way: str) -> None:
    amp.init("O1", dtype="bf16")
    net = Net()
    model = spread(net, way)
    with amp.autocast(dtype=torch.float16, custom_white_list={"softmax"}):
        model(torch.ones(3, 4))
    with amp.autocast():
        model(torch.ones(3, 4))
    model(torch.ones(3, 4))
    half, wide = (torch.float16, torch.float16), (torch.bfloat16, torch.float32)
    assert net.seen == [half] * 2 + [wide] * 2 + [(torch.float32, torch.float32)] * 2


@pytest.mark.parametrize("way", ["before", "after"])
def test_no_region_is_begun_where_none_is_asked_for(way: str) -> None:
    amp.init("O1", dtype="fp16")
    net = Net()
    model = spread(net, way)
    with amp.autocast(), amp.disable_casts():
        model(torch.ones(3, 4))
    with amp.autocast(), amp.autocast(enabled=False):
        model(torch.ones(3, 4))
    assert net.seen == [(torch.float32, torch.float32)] * 4


def test_at_o0_a_model_gets_no_hooks() -> None:
    amp.init("O0")
    net = Net()
    assert spread(net, "before").module is net
    assert not net._forward_pre_hooks and not net._forward_hooks


def test_where_there_is_one_device_a_model_gets_no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "device_count", lambda: 1)
    amp.init("O1")
    assert not amp.prepare_model(Net())._forward_pre_hooks


def test_copies_keep_it_and_saved_models_do_not() -> None:
    amp.init("O1", dtype="fp16")
    net = Net()
    model = amp.prepare_model(Parallel(net))
    twin = copy.deepcopy(model)
    with amp.autocast():
        twin(torch.ones(3, 4))
    assert twin.module.seen == [(torch.float16, torch.float32)] * 2
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(torch.ones(3, 4))[0], net.layer(torch.ones(3, 4)))
    model(torch.ones(3, 4))
    assert net.seen[-1] == (torch.float32, torch.float32)
