"""``amp.SyncBatchNorm`` that a script makes itself, in one process; ranks/syncbn.py has several."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import amp_runtime as amp
import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

KINDS: dict[int, Any] = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"momentum": None},
    {"affine": False},
    {"track_running_stats": False},
    {"eps": 0.1, "momentum": 0.5},
]


@pytest.mark.parametrize("dimensions", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_batch_norm(dimensions: int, options: dict[str, Any]) -> None:
    own, plain = amp.SyncBatchNorm(4, **options), KINDS[dimensions](4, **options)
    assert own.state_dict().keys() == plain.state_dict().keys() == nn.SyncBatchNorm(4, **options).state_dict().keys()
    own.load_state_dict(plain.state_dict())
    for training in (True, True, False):
        own.train(training), plain.train(training)
        x = torch.randn(5, 4, *[3] * dimensions)
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        outputs = [layer(value) for layer, value in zip((own, plain), inputs, strict=True)]
        for output in outputs:
            output.square().sum().backward()
        pairs = [outputs, [value.grad for value in inputs]]
        pairs += [[p.grad for p in both] for both in zip(own.parameters(), plain.parameters(), strict=True)]
        pairs += list(zip(own.buffers(), plain.buffers(), strict=True))
        assert all(torch.equal(one, other) for one, other in pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("half_weights", [True, False])
def test_it_takes_half_inputs(dtype: torch.dtype, half_weights: bool) -> None:
    own, plain = amp.SyncBatchNorm(4, dtype=dtype if half_weights else None), nn.BatchNorm2d(4)
    x = torch.randn(6, 4, 3, 3).to(dtype)
    found = own(x)
    assert found.dtype is dtype and own.weight.dtype is (dtype if half_weights else torch.float32)
    torch.testing.assert_close(found.float(), plain(x.float()), rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_it_trains_at_every_level(level: Any) -> None:
    amp.init(level, dtype="bf16")
    model = amp.prepare_model(nn.Sequential(nn.Linear(3, 4), amp.SyncBatchNorm(4)))
    assert model[1].weight.dtype is (torch.bfloat16 if level == "O3" else torch.float32)
    with amp.autocast():
        loss = model(torch.randn(5, 3)).square().mean()
    amp.scaler.scale(loss).backward()
    assert type(model[1]) is amp.SyncBatchNorm and model[1].num_batches_tracked == 1


def test_wrong_inputs_are_errors_as_in_torch() -> None:
    with pytest.raises(ValueError, match="at least 2D input"):
        amp.SyncBatchNorm(4)(torch.ones(4))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        amp.SyncBatchNorm(4)(torch.ones(1, 4))


def test_copies_and_pickles_keep_the_class_and_drop_the_group() -> None:
    layer = amp.SyncBatchNorm(4, process_group=object())
    for other in (copy.deepcopy(layer), copy.copy(layer)):
        assert type(other) is amp.SyncBatchNorm and other.process_group is layer.process_group
    layer.process_group = lambda: "no pickle takes it"
    loaded = pickle.loads(pickle.dumps(layer))
    assert type(loaded) is amp.SyncBatchNorm and loaded.process_group is None
    assert torch.equal(loaded(torch.eye(4)), layer(torch.eye(4)))
    converted = amp.convert_sync_batchnorm(nn.SyncBatchNorm(4))
    assert type(pickle.loads(pickle.dumps(converted))) is nn.SyncBatchNorm


def test_conversions_of_torch_and_ours_keep_what_it_has_learnt() -> None:
    layer = amp.SyncBatchNorm(4)
    layer(torch.randn(5, 4))
    values = [*layer.parameters(), *layer.buffers()]
    assert amp.convert_sync_batchnorm(layer) is layer and type(layer) is amp.SyncBatchNorm
    of_torch = nn.SyncBatchNorm.convert_sync_batchnorm(layer)
    again = amp.SyncBatchNorm.convert_sync_batchnorm(of_torch)
    assert isinstance(again, amp.SyncBatchNorm)
    assert all(one is other for one, other in zip(values, [*again.parameters(), *again.buffers()], strict=True))
    x = torch.randn(5, 4)
    assert torch.equal(again.eval()(x), layer.eval()(x))


class SynchronizedBatchNorm2d(_BatchNorm):
    """As scripts have it, for the replicas of ``DataParallel``."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self._sync_master = object()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )


def test_batch_norm_for_the_replicas_of_data_parallel_is_synchronised() -> None:
    layer, x = SynchronizedBatchNorm2d(4), torch.randn(3, 4, 2, 2)
    expected = copy.deepcopy(layer)(x)
    converted = amp.convert_sync_batchnorm(layer)
    assert converted is layer and isinstance(layer, amp.SyncBatchNorm) and isinstance(layer, nn.BatchNorm2d)
    assert torch.equal(layer(x), expected)


def test_batch_norm_of_an_unknown_class_is_left_with_a_warning() -> None:
    class Own(_BatchNorm):
        pass

    layer = Own(4)
    with pytest.warns(UserWarning, match="batch norm of class Own is not synchronised"):
        amp.convert_sync_batchnorm(layer)
    assert type(layer) is Own


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_scripts_that_go_by_the_text_of_the_class_still_find_it(kind: Any) -> None:
    converted = amp.convert_sync_batchnorm(kind(4))
    assert "batchnorm" in str(type(converted)) and "BatchNorm" in type(converted).__name__
