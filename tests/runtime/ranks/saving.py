"""Two ranks: checkpoints, averages of weights, and step times."""

from __future__ import annotations

import os
import random
import sys
import tempfile
import warnings
from pathlib import Path

import amp_runtime as amp
import torch
from support import assert_equal_on_ranks, gathered, run_checks

sys.path.insert(0, str(Path(__file__).parents[1]))
from resuming import Net, Run, assert_resumes_bit_for_bit


def shared_folder() -> Path:
    """A new folder, the same on both ranks."""
    return Path(gathered(tempfile.mkdtemp(dir=os.environ["CHECK_DIR"]))[0])


def check_a_run_goes_on_bit_for_bit_after_any_step() -> None:
    folder = shared_folder()
    for level, dtype in (("O0", "auto"), ("O1", "bf16"), ("O2", "bf16"), ("O2", "fp16")):
        amp.init(level, dtype=dtype, growth_interval=3)
        assert_resumes_bit_for_bit(folder / "last.pt", 6, range(1, 7))
    amp.init("O1", dtype="bf16")
    assert_resumes_bit_for_bit(folder / "last.pt", 5, (3,), workers=2, workers_later=1)
    amp.init("O0")


def check_only_the_main_process_writes_and_all_have_their_own_random_state() -> None:
    path = shared_folder() / "a.pt"
    amp.seed_by_rank()
    amp.save_checkpoint(path, number=1)
    expected = torch.rand(2).tolist(), random.random()
    assert len({str(item) for item in gathered(expected)}) == 2
    assert gathered(path.exists()) == [True, True], "it is there when the call returns, on every rank"
    assert os.listdir(path.parent) == ["a.pt"]
    torch.manual_seed(5)
    assert amp.load_checkpoint(path) == {"number": 1}
    assert (torch.rand(2).tolist(), random.random()) == expected


def check_a_file_that_only_the_main_process_sees_is_sent() -> None:
    folder = shared_folder()
    model = amp.prepare_model(Net())
    amp.save_checkpoint(folder / "a.pt", model=model, epoch=2)
    wanted = [p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1 + amp.rank())
    seen = folder / ("a.pt" if amp.rank() == 0 else "not-here.pt")
    assert amp.load_checkpoint(seen, model=model) == {"epoch": 2}
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), wanted, strict=True))
    try:
        amp.load_checkpoint(folder / ("a.pt" if amp.rank() == 1 else "not-here.pt"), model=model)
    except FileNotFoundError:
        return
    raise AssertionError("a file that the main process does not see")


def check_a_write_that_fails_fails_on_all_ranks() -> None:
    folder = shared_folder()
    (folder / "file").write_text("in the way")
    for blocked, kind in ((folder / "file" / "a.pt", OSError), (folder, OSError)):
        try:
            amp.save_checkpoint(blocked, number=1)
        except kind:
            continue
        raise AssertionError("nothing was raised")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            amp.save_checkpoint(folder / "a.pt", function=lambda: 0)
        except Exception as error:
            assert "pickle" in str(error) and "lambda" in str(error)
        else:
            raise AssertionError("nothing was raised")
    amp.save_checkpoint(folder / "a.pt", number=2)
    assert amp.load_checkpoint(folder / "a.pt") == {"number": 2}


def check_a_file_of_one_process_loads_on_two() -> None:
    folder = shared_folder()
    amp.save_checkpoint(folder / "two.pt", number=1)
    if amp.rank() == 0:
        content = torch.load(folder / "two.pt", weights_only=True)
        content["amp_checkpoint"]["ranks"] = content["amp_checkpoint"]["ranks"][:1]
        torch.save(content, folder / "one.pt")
    amp.barrier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        amp.load_checkpoint(folder / "one.pt")
    assert len(caught) == (amp.rank() == 0)
    first, second = gathered(torch.rand(3).tolist())
    assert first != second


def check_averages_agree_on_both_ranks_and_follow_a_wrapped_or_delayed_model() -> None:
    for level in ("O1", "O2"):
        for delayed in (False, True):
            amp.init(level, dtype="bf16")
            model = amp.prepare_model(Net(), delay_allreduce=delayed)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            ema = amp.EMA(model, 0.5)
            for step in range(3):
                optimizer.zero_grad()
                x = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + amp.rank()))
                with amp.autocast():
                    loss = model(x).float().square().sum()
                amp.scaler.scale(loss).backward()
                amp.scaler.step(optimizer)
                amp.scaler.update()
                ema.update()
            assert ema.updates == 3
            assert_equal_on_ranks(ema.module.parameters())
            before = [p.detach().clone() for p in model.parameters()]
            with ema.applied():
                assert not torch.equal(model.first.weight, before[0])
            assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    amp.init("O0")


def check_an_overflow_on_one_rank_holds_the_average_on_both() -> None:
    amp.init("O1", dtype="fp16", init_scale=8.0)
    run = Run(1)
    run.train(1)
    optimizer, ema = run.optimizer, run.ema
    optimizer.zero_grad()
    x = torch.full((4, 5), float("inf") if amp.rank() == 1 else 1.0)
    amp.scaler.scale(run.model(x).sum()).backward()
    amp.scaler.step(optimizer)
    amp.scaler.update()
    ema.update()
    assert gathered(ema.updates) == [1, 1]
    amp.init("O0")


def check_step_times_of_all_ranks() -> None:
    now = [0.0]
    timer = amp.StepTimer(warmup=0, clock=lambda: now[0])
    for _ in timer([torch.zeros(4)] * 2):
        now[0] += 1.0 + amp.rank()
    assert timer.stats().batch_cost.avg == 1.0 + amp.rank()
    assert timer.stats(all_ranks=True).batch_cost == (1.5, 2.0, 1.0)
    assert timer.stats(all_ranks=True).ips.avg == 4.0 + 2.0


if __name__ == "__main__":
    run_checks(globals())
