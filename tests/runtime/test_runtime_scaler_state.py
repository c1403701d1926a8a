"""The scaler in checkpoints."""

from __future__ import annotations

import logging
from typing import Any

import amp_runtime as amp
import pytest
import torch
from torch import nn

INF = float("inf")


def start(**settings: Any) -> tuple[nn.Linear, torch.optim.Optimizer]:
    amp.shutdown()
    amp.init("O1", dtype="fp16", **settings)
    torch.manual_seed(0)
    model = amp.prepare_model(nn.Linear(3, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def run(model: nn.Module, optimizer: torch.optim.Optimizer, factors: Any, loss_id: int = 0) -> None:
    for factor in factors:
        optimizer.zero_grad()
        amp.scaler.scale(model(torch.ones(1, 3)).sum() * factor, loss_id=loss_id).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()


def test_torch_s_scaler_loads_ours_and_we_load_its() -> None:
    run(*start(), [1, 1, INF, 1])
    saved = amp.scaler.state_dict()
    theirs = torch.amp.GradScaler("cpu")
    assert saved.keys() >= theirs.state_dict().keys()
    theirs.load_state_dict(saved)
    assert theirs.get_scale() == 32768.0 and theirs._init_growth_tracker == 1
    start()
    amp.scaler.load_state_dict(theirs.state_dict())
    assert amp.scaler.get_scale() == 32768.0 and amp.scaler.state_dict()["_growth_tracker"] == 1


def test_every_loss_gets_torch_s_one_scale() -> None:
    start(num_losses=2)
    amp.scaler.load_state_dict(torch.amp.GradScaler("cpu", init_scale=8.0).state_dict() | {"scale": 8.0})
    assert [amp.scaler.get_scale(k) for k in range(2)] == [8.0, 8.0]


def test_a_resumed_scaler_goes_on_as_if_nothing_had_happened() -> None:
    factors = [1, 1, 1, INF, 1, INF, INF, 1, 1, 1, 1, 1]
    for cut in range(len(factors)):
        model, optimizer = start(growth_interval=3)
        run(model, optimizer, factors)
        expected = amp.scaler.state_dict()
        model, optimizer = start(growth_interval=3)
        run(model, optimizer, factors[:cut])
        saved = amp.scaler.state_dict()
        model, optimizer = start(growth_interval=3)
        amp.scaler.load_state_dict(saved)
        run(model, optimizer, factors[cut:])
        assert amp.scaler.state_dict() == expected, cut


def test_skips_in_a_row_are_counted_over_a_resume() -> None:
    model, optimizer = start()
    run(model, optimizer, [INF, INF])
    saved = amp.scaler.state_dict()
    model, optimizer = start()
    amp.scaler.max_skips = 3
    amp.scaler.load_state_dict(saved)
    with pytest.raises(amp.GradientOverflowError, match="3 steps"):
        run(model, optimizer, [INF])


def test_several_losses_are_saved() -> None:
    model, optimizer = start(num_losses=2)
    run(model, optimizer, [INF, INF, 1], loss_id=1)
    saved = amp.scaler.state_dict()
    start(num_losses=2)
    amp.scaler.load_state_dict(saved)
    assert [amp.scaler.get_scale(k) for k in range(2)] == [65536.0, 16384.0]
    assert amp.scaler.state_dict() == saved


def test_apex_s_states_are_loaded(caplog: pytest.LogCaptureFixture) -> None:
    apex = {f"loss_scaler{k}": {"loss_scale": 2.0**k, "unskipped": 10 + k} for k in range(12)}
    start(num_losses=12)
    amp.scaler.load_state_dict(apex)
    assert [amp.scaler.get_scale(k) for k in range(12)] == [2.0**k for k in range(12)]
    assert amp.scaler.state_dict()["losses"][11]["_growth_tracker"] == 21
    start()
    with caplog.at_level(logging.WARNING, logger="amp_runtime"):
        amp.scaler.load_state_dict(
            {"loss_scaler0": {"loss_scale": 64.0, "unskipped": 3}, "loss_scaler1": {"loss_scale": 1.0}}
        )
    assert amp.scaler.get_scale() == 64.0 and amp.scaler.state_dict()["_growth_tracker"] == 3
    assert "2 loss scales" in caplog.text and "num_losses=1" in caplog.text


@pytest.mark.parametrize("settings", [{"opt_level": "O0"}, {"opt_level": "O1", "dtype": "bf16"}])
def test_a_state_survives_a_run_in_which_nothing_is_scaled(settings: Any) -> None:
    model, optimizer = start()
    run(model, optimizer, [INF, 1])
    saved = amp.scaler.state_dict()
    amp.shutdown()
    amp.init(**settings)
    assert amp.scaler.state_dict() == {}
    amp.scaler.load_state_dict(saved)
    assert amp.scaler.get_scale() == 1.0
    assert amp.scaler.state_dict() == saved


def test_a_static_scale_stays_what_init_was_told() -> None:
    run(*start(), [1])
    saved = amp.scaler.state_dict()
    start(loss_scale=128)
    amp.scaler.load_state_dict(saved)
    assert amp.scaler.get_scale() == 128.0


def test_an_empty_state_changes_nothing() -> None:
    run(*start(), [INF])
    before = amp.scaler.state_dict()
    amp.scaler.load_state_dict({})
    assert amp.scaler.state_dict() == before


def test_a_collapsed_scale_of_torch_s_is_lifted_to_the_floor() -> None:
    start(min_scale=4.0)
    amp.scaler.load_state_dict(torch.amp.GradScaler("cpu").state_dict() | {"scale": 0.0})
    assert amp.scaler.get_scale() == 4.0


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ({"loss_scale": 3}, ValueError, r"keys \['loss_scale'\].*growth_factor.*loss_scaler0"),
        ({"scale": 1.0}, ValueError, r"keys \['scale'\]"),
        ([1], TypeError, "list"),
        (None, TypeError, "NoneType"),
        ({"loss_scaler0": 3}, ValueError, "of 3;.*unskipped"),
        ({"loss_scalerx": {"loss_scale": 1.0}}, ValueError, "'loss_scalerx'"),
        ({"loss_scaler0": {"loss_scale": float("nan")}}, ValueError, "nan"),
        ({"loss_scaler0": {"loss_scale": -1.0}}, ValueError, "-1"),
    ],
)
def test_other_states_are_refused_clearly(state: Any, error: Any, message: str) -> None:
    start()
    before = amp.scaler.state_dict()
    with pytest.raises(error, match=message):
        amp.scaler.load_state_dict(state)
    assert amp.scaler.state_dict() == before
