"""Two ranks whose training parts, or one of which steps without the scaler."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import amp_runtime as amp
import torch
from amp_runtime._noticing import parting
from support import gathered, run_checks
from torch import nn

errors: list[str] = []


def assert_told(pattern: str) -> None:
    """Rank 1 got this error, and nobody another one. All have made the same exchanges meanwhile."""
    if amp.rank() == 1:
        assert errors and all(re.search(pattern, error) for error in errors), errors
    else:
        assert not errors, errors


def start(level: Any = "O0", dtype: Any = "auto", rate: float = 0.1, **options: Any) -> tuple[Any, Any]:
    amp.shutdown()
    errors.clear()
    amp.init(level, dtype=dtype, ddp=True)
    model = amp.prepare_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), **options)
    return model, torch.optim.SGD(model.parameters(), lr=rate)


def step(model: Any, optimizer: Any, before: Callable[[], object] = lambda: None) -> None:
    optimizer.zero_grad()
    with amp.autocast():
        loss = model(torch.randn(3, 4) + amp.rank()).float().square().mean()
    amp.scaler.scale(loss).backward()
    before()
    try:
        amp.scaler.step(optimizer)
    except RuntimeError as error:
        errors.append(str(error))
    amp.scaler.update()


def settled(model: Any, optimizer: Any) -> None:
    """Steps until this rank has found what rank 0 has left."""
    amp.barrier()
    step(model, optimizer)


def check_ranks_that_stay_together_are_left_in_peace() -> None:
    for check in ("on", "every"):
        os.environ["AMP_CHECK"] = check
        for level, dtype in (("O0", "auto"), ("O1", "bf16"), ("O2", "bf16"), ("O2", "fp16"), ("O3", "bf16")):
            for delayed in (False, True):
                model, optimizer = start(level, dtype, delay_allreduce=delayed)
                for _ in range(12):
                    step(model, optimizer)
                settled(model, optimizer)
                assert not errors, errors
                # A step that is skipped on the device is called all the same.
                assert 13 - amp.scaler.skipped_steps <= parting._steps.made <= 13
                assert not parting._steps.waiting or check == "every"
                amp.scaler.restart()
    del os.environ["AMP_CHECK"]


def check_a_parameter_that_one_rank_writes_is_named() -> None:
    for level, dtype in (("O0", "auto"), ("O2", "bf16")):
        model, optimizer = start(level, dtype)
        for _ in range(4):
            step(model, optimizer)
        with torch.no_grad():
            for parameter in model[1].parameters() if amp.rank() == 1 else ():
                parameter.mul_(2)
        for _ in range(6):
            step(model, optimizer)
        settled(model, optimizer)
        pattern = r"as step 10 shows: parameter Sequential\.1\.\w+ has an element \S+ on rank 1 and \S+ on rank 0"
        assert_told(pattern + r"; since the ranks were compared last it was written \d+ and \d+ times\.")


def check_gradients_that_are_not_averaged_are_told_at_the_first_step() -> None:
    model, optimizer = start()
    step(model, optimizer, lambda: model[0].weight.grad.add_(amp.rank()))
    settled(model, optimizer)
    assert_told(r"as step 1 shows: parameter Sequential\.0\.weight")


def check_learning_rates_and_numbers_of_steps() -> None:
    model, optimizer = start(rate=0.1 + 0.1 * amp.rank())
    step(model, optimizer)
    settled(model, optimizer)
    assert_told(r"the learning rate of SGD, group 0, is 0\.2 on rank 1 and 0\.1 on rank 0")
    model, optimizer = start()
    second = torch.optim.SGD(model[1].parameters(), lr=0.0)
    probe = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1 + amp.rank())
    for _ in range(12):
        probe.step()
        step(model, optimizer)
        if amp.rank() == 0:
            second.step()
    settled(model, optimizer)
    assert_told(r"SGD has made 10 steps on rank 1 and 5 on rank 0")


def check_a_rank_that_makes_fewer_steps_hangs_nobody() -> None:
    _, optimizer = start()
    for _ in range(10 * amp.rank()):
        try:
            optimizer.step()
        except RuntimeError as error:
            errors.append(str(error))
    assert_told(r"rank 1 has made 10 steps, and rank 0 fewer than 1\.")
    assert amp.rank() == 0 or len(errors) == 1


def check_a_checkpoint_of_ranks_that_have_parted_is_not_written() -> None:
    path = Path(gathered(tempfile.mkdtemp(dir=os.environ["CHECK_DIR"]))[0]) / "a.pt"
    model, optimizer = start()
    for _ in range(2):
        step(model, optimizer)
    amp.save_checkpoint(path, model=model)
    assert set(torch.load(path)["amp_checkpoint"]["ranks"][0]) == {"rng", "loaders"}
    with torch.no_grad():
        model[0].bias.add_(amp.rank())
    kept = path.read_bytes()
    for check in ("on", "off"):
        os.environ["AMP_CHECK"] = check
        try:
            amp.save_checkpoint(path, model=model)
        except RuntimeError as error:
            assert check == "on" and "amp.save_checkpoint: the ranks have diverged: parameter Sequential.0.bias" in str(
                error
            )
            assert path.read_bytes() == kept
        else:
            assert check == "off"
        parting.end()
    del os.environ["AMP_CHECK"]


def check_rounding_is_no_difference() -> None:
    model, optimizer = start()
    step(model, optimizer)
    with torch.no_grad():
        model[0].weight.mul_(1 + 1e-6 * amp.rank())
    for _ in range(9):
        step(model, optimizer)
    settled(model, optimizer)
    assert not errors


def check_other_steps_exchange_nothing_and_read_nothing() -> None:
    model, optimizer = start()
    asked: list[str] = []

    class Counted:
        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(self._store, name)

    step(model, optimizer)
    settled(model, optimizer)
    parting._steps.store = Counted(parting._steps.store)
    for _ in range(7):
        step(model, optimizer)
    assert parting._steps.made == 9 and not asked
    step(model, optimizer)
    assert asked == ["set"] if amp.rank() == 0 else asked[0] == "check"
    amp.barrier()
    parting._steps.store = parting._steps.store._store


def check_a_store_that_is_gone_stops_nothing() -> None:
    model, optimizer = start()

    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("connection reset")

    parting._steps.store = Gone()
    for _ in range(11):
        step(model, optimizer)
    assert parting._steps.store is None and not errors


def check_a_step_on_scaled_gradients_is_an_error_under_ddp() -> None:
    for delayed in (False, True):
        model, optimizer = start("O1", "fp16", delay_allreduce=delayed)
        step(model, optimizer)
        optimizer.zero_grad()
        amp.scaler.scale(model(torch.ones(1, 4)).sum()).backward()
        try:
            optimizer.step()
        except RuntimeError as error:
            assert "scaled loss" in str(error)
        else:
            raise AssertionError("no error")
    amp.init("O0", ddp=True)


if __name__ == "__main__":
    run_checks(globals())
