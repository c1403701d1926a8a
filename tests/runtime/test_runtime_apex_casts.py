"""The casts of Apex's O1, operation by operation; test_runtime_apex_amp.py has the rest of its amp."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from amp_runtime._core import capabilities
from amp_runtime.apex import amp
from apex_scripts import reset
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
TYPES = [torch.float16, torch.bfloat16, torch.float32]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    reset()
    yield
    reset()


@pytest.fixture(params=HALVES)
def half(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """The half type of O1, which is on."""
    monkeypatch.setenv("AMP_DTYPE", request.param)
    amp.init()
    return HALVES[request.param]


# -- recurrent layers --

LAYERS: list[tuple[Any, dict[str, Any]]] = [
    (nn.LSTM, {}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    (nn.LSTM, {"proj_size": 4}),
    (nn.LSTM, {"bias": False}),
    (nn.GRU, {}),
    (nn.GRU, {"bidirectional": True, "batch_first": True}),
    (nn.RNN, {}),
    (nn.RNN, {"nonlinearity": "relu"}),
]
CELLS: list[tuple[Any, dict[str, Any]]] = [
    (nn.LSTMCell, {}),
    (nn.GRUCell, {}),
    (nn.RNNCell, {}),
    (nn.RNNCell, {"nonlinearity": "relu"}),
]


def assert_like_float32(got: torch.Tensor, wanted: torch.Tensor, half: torch.dtype) -> None:
    assert got.dtype is half
    tolerance = 0.05 if half is torch.bfloat16 else 0.01
    torch.testing.assert_close(got.float(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("kind", "options"), LAYERS, ids=str)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_recurrent_layer_takes_any_type(
    kind: Any, options: dict[str, Any], dtype: torch.dtype, packed: bool, half: torch.dtype
) -> None:
    torch.manual_seed(0)
    layer, x = kind(8, 8, **options), torch.randn(5, 3, 8)
    given = x.to(dtype).requires_grad_()
    lengths = torch.tensor([5, 5, 3] if not layer.batch_first else [3] * 5)

    def run(x: torch.Tensor) -> torch.Tensor:
        if not packed:
            output: torch.Tensor = layer(x)[0]
            return output
        sequence = pack_padded_sequence(x, lengths, batch_first=layer.batch_first)
        return layer(sequence)[0].data  # type: ignore[no-any-return]

    with amp.disable_casts():
        wanted = run(x)
    got = run(given)
    assert_like_float32(got, wanted, half)
    got.float().sum().backward()
    assert given.grad is not None and given.grad.dtype is dtype
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in layer.parameters())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("state", TYPES)
def test_a_recurrent_layer_takes_a_state_of_any_type(dtype: torch.dtype, state: torch.dtype, half: torch.dtype) -> None:
    x = torch.randn(5, 3, 8, dtype=dtype)
    zeros = torch.zeros(1, 3, 8, dtype=state)
    for kind, hidden in ((nn.LSTM, (zeros, zeros)), (nn.GRU, zeros)):
        output, last = kind(8, 8)(x, hidden)
        assert output.dtype is half and (last[1] if kind is nn.LSTM else last).dtype is half


@pytest.mark.parametrize(("kind", "options"), CELLS, ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_cell_takes_any_type(kind: Any, options: dict[str, Any], dtype: torch.dtype, half: torch.dtype) -> None:
    torch.manual_seed(0)
    cell, x = kind(8, 8, **options), torch.randn(3, 8)
    first = torch.randn(3, 8)

    def run(dtype: torch.dtype) -> torch.Tensor:
        hidden = first.to(dtype)
        for _ in range(3):
            hidden = cell(x.to(dtype), (hidden, first.to(dtype)) if kind is nn.LSTMCell else hidden)
            hidden = hidden[0] if kind is nn.LSTMCell else hidden
        return hidden

    with amp.disable_casts():
        wanted = run(torch.float32)
    got = run(dtype)
    assert_like_float32(got, wanted, half)
    got.float().sum().backward()
    assert all(p.grad is not None for p in cell.parameters())


def test_a_layer_that_the_device_lacks_runs_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_DTYPE", "fp16")

    def lacking(make: Any) -> Any:
        if make(1).dtype is torch.float16:
            raise RuntimeError("no such kernel")
        return make(1)

    for name in ("_complaints", "_complete", "_agreed"):
        monkeypatch.setattr(capabilities, name, {})
    monkeypatch.setitem(capabilities.TRIALS, "gru", lacking)  # type: ignore[arg-type]
    amp.init()
    with pytest.warns(UserWarning, match=r"lacks in float16 runs in float32: gru \(no such kernel\)"):
        output, _ = nn.GRU(8, 8)(torch.randn(5, 3, 8).half())
    assert output.dtype is torch.float32 and nn.LSTM(8, 8)(torch.randn(5, 3, 8))[0].dtype is torch.float16


# -- other half types --


@pytest.mark.parametrize("dtype", TYPES)
def test_what_runs_in_half_takes_any_type(dtype: torch.dtype, half: torch.dtype) -> None:
    x = torch.randn(3, 4, dtype=dtype)
    assert nn.Linear(4, 2)(x).dtype is half and (x @ torch.ones(4, 2)).dtype is half
    assert nn.Conv1d(3, 2, 1)(x).dtype is half
    assert F.softmax(x, -1).dtype is torch.float32


# -- in place --

FLOAT = ["acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log1p", "log2"]
FLOAT += ["reciprocal", "rsqrt", "sinh", "tan"]


@pytest.mark.parametrize("name", FLOAT)
def test_what_runs_in_float32_writes_into_no_half_tensor(name: str, half: torch.dtype) -> None:
    for function in (getattr(torch, f"{name}_", None), getattr(torch.Tensor, f"{name}_")):
        if function is None:  # torch.erfinv_, say
            continue
        values = torch.tensor([0.25, 0.5, 1.0])
        for dtype in HALVES.values():
            x = values.to(dtype)
            with pytest.raises(NotImplementedError, match=rf"{name}_ on half tensors.* Use {name} without"):
                function(x)
            assert torch.equal(x, values.to(dtype)), "nothing was written"
        with amp.disable_casts():
            function(values.to(half))
        assert torch.equal(function(values.clone()), getattr(torch, name)(values))
    assert getattr(torch, name)(values.to(half)).dtype is torch.float32


@pytest.mark.parametrize("name", ["cumprod", "cumsum", "pow", "renorm"])
def test_methods_with_arguments_write_into_no_half_tensor(name: str, half: torch.dtype) -> None:
    arguments: Any = {"pow": (2,), "renorm": (2, 0, 1.0)}.get(name, (0,))
    x = torch.rand(3, 3)
    with pytest.raises(NotImplementedError, match=f"{name}_ on half tensors"):
        getattr(x.to(half), f"{name}_")(*arguments)
    assert getattr(x, f"{name}_")(*arguments) is x
    exponent = torch.full((3, 3), 2.0, dtype=half)
    assert torch.rand(3, 3).pow_(exponent=exponent).dtype is torch.float32


@pytest.mark.parametrize("written", TYPES)
@pytest.mark.parametrize("read", TYPES)
def test_products_in_place_have_the_type_of_what_they_write(
    written: torch.dtype, read: torch.dtype, half: torch.dtype
) -> None:
    vector, matrix, batch = torch.rand(4).to(read), torch.rand(4, 4).to(read), torch.rand(2, 4, 4).to(read)
    cases: list[tuple[str, torch.Tensor, tuple[torch.Tensor, ...]]] = [
        ("addmm_", matrix, (matrix, matrix)),
        ("addbmm_", matrix, (batch, batch)),
        ("baddbmm_", batch, (batch, batch)),
        ("addmv_", vector, (matrix, vector)),
        ("addr_", matrix, (vector, vector)),
    ]
    for name, target, others in cases:
        wanted = getattr(target.float().clone(), name)(*(other.float() for other in others))
        x = target.to(written, copy=True)
        assert getattr(x, name)(*others, beta=1) is x and x.dtype is written
        torch.testing.assert_close(x.float(), wanted, rtol=0.03, atol=0.03)


def test_everything_is_put_back() -> None:
    before = {name: getattr(torch.Tensor, f"{name}_") for name in (*FLOAT, "addmm", "cumsum")}
    amp.init()._deactivate()
    assert {name: getattr(torch.Tensor, f"{name}_") for name in before} == before
    assert torch.ones(2).half().exp_().dtype is torch.float16


# -- what is banned --


def test_what_a_handle_allowed_ends_with_it(half: torch.dtype) -> None:
    probabilities, target = torch.rand(3).to(half), torch.ones(3)
    handle = amp.init(allow_banned=True)
    assert amp.init().allow_banned, "amp.initialize comes after it"
    assert F.binary_cross_entropy(probabilities, target).dtype is torch.float32
    amp._amp_state.handle._deactivate()
    handle._deactivate()
    amp.init()
    for loss in (nn.BCELoss(), F.binary_cross_entropy):
        with pytest.raises(NotImplementedError, match="BCEWithLogitsLoss"):
            loss(probabilities, target)
