"""``amp.shutdown`` leaves nothing behind that another ``amp.init`` in the same process would meet."""

from __future__ import annotations

from pathlib import Path

import amp_runtime as amp
import pytest
import torch
from launching import torchrun
from torch import nn

INF = float("inf")


def test_the_scaler_is_as_new_again() -> None:
    new = vars(amp.Scaler()).keys()
    amp.init("O1", dtype="fp16")
    state = amp.scaler.state_dict()
    amp.scaler.load_state_dict({**state, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 5})
    amp.scaler.max_skips, amp.scaler.process_group = 7, False
    amp.shutdown()
    fresh = amp.Scaler()
    for name in ("growth_factor", "backoff_factor", "growth_interval", "max_skips", "process_group", "skipped_steps"):
        assert getattr(amp.scaler, name) == getattr(fresh, name), name
    assert vars(amp.scaler).keys() == new


def test_hooks_of_an_observed_step_are_gone() -> None:
    amp.init("O1", dtype="fp16")
    amp.scaler.max_skips = 2
    model = amp.prepare_model(nn.Linear(2, 2))
    before = len(model._forward_hooks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.scaler.scale(model(torch.full((1, 2), INF)).sum()).backward()
    amp.scaler.step(optimizer)
    amp.scaler.update()
    assert len(model._forward_hooks) > before, "one skip is left, so the next step is observed"
    amp.shutdown()
    assert len(model._forward_hooks) == before
    assert not model.weight._backward_hooks


def test_a_model_is_prepared_anew() -> None:
    model = nn.Linear(2, 2)
    amp.init("O1")
    amp.prepare_model(model)
    amp.shutdown()
    amp.init("O2", dtype="bf16")
    assert amp.prepare_model(model).weight.dtype is torch.bfloat16


@pytest.mark.heavy
def test_the_processes_of_torchrun_may_join_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import amp_runtime as amp, torch\n"
        "for delayed in (False, True):\n"
        "    amp.init('O0', ddp=True)\n"
        "    model = amp.prepare_model(torch.nn.Linear(1, 1), delay_allreduce=delayed)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    amp.scaler.scale(model(torch.ones(1, 1)).sum() * amp.rank()).backward()\n"
        "    amp.scaler.step(optimizer)\n"
        "    assert amp.world_size() == 2 and model.bias.grad.item() == 0.5\n"
        "    amp.shutdown()\n"
    )
    finished = torchrun(script, tmp_path)
    assert finished.returncode == 0, finished.stderr[-3000:]
