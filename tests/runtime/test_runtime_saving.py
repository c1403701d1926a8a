"""Checkpoints in one process: what is in them, what they survive, and that a run goes on bit for bit."""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import amp_runtime as amp
import numpy
import pytest
import torch
from amp_runtime._core.context import context
from amp_runtime._saving import ranks
from amp_runtime._saving.atomic import write_atomically
from launching import Launcher, torchrun
from resuming import Net, Points, Run, assert_resumes_bit_for_bit
from torch import nn
from torch.utils import data

HERE = Path(__file__).parent


def net(level: Any = "O0", **settings: Any) -> tuple[Any, torch.optim.Optimizer]:
    amp.init(level, dtype="bf16", **settings)
    model = amp.prepare_model(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    with amp.autocast():
        loss = model(torch.randn(6, 3)).square().mean()
    amp.scaler.scale(loss).backward()
    amp.scaler.step(optimizer)
    amp.scaler.update()


def assert_equal(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected) or isinstance(actual, dict)
    if isinstance(expected, dict):
        assert set(actual) == set(expected)
        for key, value in expected.items():
            assert_equal(actual[key], value)
    elif isinstance(expected, list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, torch.Tensor):
        assert actual.dtype is expected.dtype and torch.equal(actual, expected)
    else:
        assert actual == expected


# Resuming


@pytest.mark.parametrize(
    ("level", "dtype", "optimizer"),
    [
        ("O0", "auto", "SGD"),
        ("O1", "bf16", "AdamW"),
        ("O1", "fp16", "SGD"),
        ("O2", "bf16", "AdamW"),
        ("O2", "fp16", "SGD"),
        ("O2", "bf16", "LAMB"),
        ("O2", "bf16", "NovoGrad"),
    ],
)
def test_a_run_goes_on_bit_for_bit_after_any_step(tmp_path: Path, level: Any, dtype: Any, optimizer: str) -> None:
    amp.init(level, dtype=dtype, growth_interval=3)
    assert_resumes_bit_for_bit(tmp_path / "last.pt", 9, range(1, 10), optimizer=optimizer)
    if dtype == "fp16":
        assert amp.scaler.skipped_steps or amp.scaler.get_scale() != 65536.0, "the scale has a history"


def test_a_run_goes_on_bit_for_bit_with_another_number_of_workers(tmp_path: Path) -> None:
    amp.init("O1", dtype="bf16")
    assert_resumes_bit_for_bit(tmp_path / "last.pt", 6, (2, 4), workers=2, workers_later=1)
    assert_resumes_bit_for_bit(tmp_path / "last.pt", 6, (3,), workers=0, workers_later=2)


@pytest.mark.heavy
def test_a_run_goes_on_bit_for_bit_in_a_new_process(launcher: Launcher, tmp_path: Path) -> None:
    amp.init("O2", dtype="bf16")
    numpy.random.seed(1)
    whole = Run(1)
    whole.train(7, tmp_path / "last.pt", [5])
    expected = [whole.losses[5:], [t.double().sum().item() for t in whole.everything()], numpy.random.rand()]
    script = tmp_path / "train.py"
    script.write_text(
        "import json, sys\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "import amp_runtime as amp, numpy\n"
        "from pathlib import Path\n"
        "from resuming import Run\n"
        "amp.init('O2', dtype='bf16')\n"
        "run = Run(77)\n"
        "run.resume(Path('last-5.pt'))\n"
        "run.train(7)\n"
        "sums = [t.double().sum().item() for t in run.everything()]\n"
        "print(json.dumps([run.losses, sums, numpy.random.rand()]))\n"
    )
    done = launcher.alone(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


RESTARTED = f"""
import json, os, signal, sys
sys.path.insert(0, {str(HERE)!r})
import amp_runtime as amp
from pathlib import Path
from resuming import Run

amp.init('O2', dtype='bf16', ddp=True)
folder = Path(os.environ['CHECK_DIR'])
attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])
run = Run(7 + attempt)
if (folder / 'last.pt').exists():
    run.resume(folder / 'last.pt')
log = (folder / f'{{attempt}}-{{amp.rank()}}').open('w')
while run.steps < 7:
    for x, y in run.loader:
        run._step(x, y)
        print(json.dumps([run.steps, x[:, 0].tolist()]), file=log, flush=True)
        if run.steps in (1, 3, 4):
            amp.save_checkpoint(folder / 'last.pt', **run.parts(), steps=run.steps)
        if run.steps == int(os.environ['KILLED']) and attempt == 0 and amp.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if run.steps == 7:
            break
final = [tensor.double().sum().item() for tensor in run.everything()]
(folder / f'final-{{amp.rank()}}').write_text(json.dumps(final))
"""


@pytest.mark.heavy
@pytest.mark.parametrize("killed", [4, pytest.param(6, marks=pytest.mark.slow)])
def test_torchrun_restarts_a_killed_rank_and_the_run_goes_on_bit_for_bit(killed: int, tmp_path: Path) -> None:
    """From the checkpoint in the middle of an epoch, or at its end; each sample counts once in an epoch."""
    finals = []
    for name, options in (("killed", ["--max-restarts", "1"]), ("whole", [])):
        folder = tmp_path / name
        folder.mkdir()
        script = folder / "train.py"
        script.write_text(RESTARTED.replace("(1, 3, 4)", "(1, 3)") if killed == 4 else RESTARTED)
        finished = torchrun(script, folder, *options, KILLED=str(killed if options else 0))
        assert finished.returncode == 0, finished.stderr[-3000:]
        finals.append([json.loads((folder / f"final-{rank}").read_text()) for rank in range(2)])
    assert finals[0] == finals[1]
    first, second = (_steps(tmp_path / "killed", attempt) for attempt in range(2))
    assert min(second) == (4 if killed == 4 else 5), "it goes on after the last checkpoint"
    counted = {**first, **second}
    for step in (1, 3, 5):  # an epoch has two steps
        assert len(counted[step] + counted[step + 1]) == len(set(counted[step] + counted[step + 1])) == 14


def _steps(folder: Path, attempt: int) -> dict[int, list[float]]:
    """What both ranks have read, by step."""
    found: dict[int, list[float]] = {}
    for rank in range(2):
        for line in (folder / f"{attempt}-{rank}").read_text().splitlines():
            step, samples = json.loads(line)
            found.setdefault(step, []).extend(samples)
    return found


def test_numpys_and_pythons_random_states_come_back(tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [torch.rand(()).item(), random.random(), float(numpy.random.normal()), float(numpy.random.rand())]

    draw()
    amp.save_checkpoint(tmp_path / "a.pt", epoch=1)
    expected = draw()
    amp.load_checkpoint(tmp_path / "a.pt", rng=False)
    assert draw() != expected
    amp.load_checkpoint(tmp_path / "a.pt")
    assert draw() == expected


# What is in the file


@pytest.mark.parametrize("saved", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("loaded", ["O0", "O1", "O2"])
def test_a_file_of_one_level_loads_at_another(tmp_path: Path, saved: str, loaded: str) -> None:
    model, optimizer = net(saved)
    ema = amp.EMA(model, 0.5)
    for _ in range(3):
        step(model, optimizer)
        ema.update()
    amp.save_checkpoint(tmp_path / "a.pt", model=model, optimizer=optimizer, ema=ema)
    weights = copy.deepcopy(model.state_dict())
    moments = copy.deepcopy(optimizer.state_dict()["state"])
    amp.shutdown()
    other, its_optimizer = net(loaded)
    average = amp.EMA(other)
    amp.load_checkpoint(tmp_path / "a.pt", model=other, optimizer=its_optimizer, ema=average)
    assert_equal(dict(other.state_dict()), dict(weights))
    assert_equal(average.state_dict(), ema.state_dict())
    if saved != "O3":
        assert_equal(its_optimizer.state_dict()["state"], moments)
    step(other, its_optimizer)


def test_the_file_is_an_ordinary_one_that_needs_nothing_to_be_read(tmp_path: Path) -> None:
    model, optimizer = net("O2")
    step(model, optimizer)
    amp.save_checkpoint(
        tmp_path / "a.pt", model=model, optimizer=optimizer, epoch=3, best=numpy.float64(0.5), tags=["x"]
    )
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    assert (content["epoch"], content["best"], content["tags"]) == (3, 0.5, ["x"]) and type(content["best"]) is float
    plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    plain.load_state_dict(content["model"])
    assert plain[0].weight.dtype is torch.float32
    about = content["amp_checkpoint"]
    assert (about["format"], about["opt_level"], about["dtype"], about["world_size"]) == (1, "O2", "bfloat16", 1)


def test_values_come_back_and_so_does_what_was_not_asked_for(tmp_path: Path) -> None:
    model, optimizer = net()
    amp.save_checkpoint(tmp_path / "a.pt", model=model, optimizer=optimizer, epoch=3, best={"top1": 0.5})
    rest = amp.load_checkpoint(tmp_path / "a.pt", model=model)
    assert set(rest) == {"optimizer", "epoch", "best"} and rest["best"] == {"top1": 0.5}


def test_several_models_and_optimizers_in_dictionaries_and_lists(tmp_path: Path) -> None:
    first, one = net()
    second, two = net()
    step(first, one)
    kinds = {"models": {"g": first, "d": second}, "optimizers": [one, two]}
    amp.save_checkpoint(tmp_path / "a.pt", **kinds, history=[1, 2], empty={})
    third, three = net()
    fourth, four = net()
    rest = amp.load_checkpoint(tmp_path / "a.pt", models={"d": fourth, "g": third}, optimizers=(three, four))
    assert rest == {"history": [1, 2], "empty": {}}
    assert_equal(dict(third.state_dict()), dict(first.state_dict()))
    assert_equal(dict(fourth.state_dict()), dict(second.state_dict()))
    assert_equal(three.state_dict(), one.state_dict())
    with pytest.raises(RuntimeError, match="'models' in the file has g, d, and x were given"):
        amp.load_checkpoint(tmp_path / "a.pt", models={"x": third})
    with pytest.raises(TypeError, match="got in models objects with a state_dict, and a int"):
        amp.save_checkpoint(tmp_path / "a.pt", models=[first, 1])


def test_every_scheduler_of_torchs_comes_back(tmp_path: Path) -> None:
    lr = torch.optim.lr_scheduler
    makers: list[Any] = [
        lambda o: lr.StepLR(o, 2),
        lambda o: lr.MultiStepLR(o, [1, 3]),
        lambda o: lr.LambdaLR(o, lambda n: 0.9**n),
        lambda o: lr.OneCycleLR(o, 0.1, total_steps=20),
        lambda o: lr.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
        lambda o: lr.CosineAnnealingWarmRestarts(o, 3),
        lambda o: lr.SequentialLR(o, [lr.ConstantLR(o), lr.ExponentialLR(o, 0.9)], [2]),
        lambda o: lr.ReduceLROnPlateau(o, patience=0),
    ]
    for make in makers:
        rates: list[list[float]] = []
        schedulers = []
        for _ in range(2):
            optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
            schedulers.append((make(optimizer), optimizer))

        def advance(scheduler: Any, optimizer: Any) -> None:
            optimizer.step()
            scheduler.step(*[1.0] * isinstance(scheduler, lr.ReduceLROnPlateau))

        first, optimizer = schedulers[0]
        for _ in range(3):
            advance(first, optimizer)
        amp.save_checkpoint(tmp_path / "a.pt", scheduler=first, optimizer=optimizer)
        amp.load_checkpoint(tmp_path / "a.pt", scheduler=schedulers[1][0], optimizer=schedulers[1][1])
        for pair in schedulers:
            advance(*pair)
            rates.append([group["lr"] for group in pair[1].param_groups])
        assert rates[0] == rates[1], type(first).__name__


def test_the_scaler_is_in_it_without_being_named(tmp_path: Path) -> None:
    amp.init("O1", dtype="fp16", init_scale=1024.0)
    amp.scaler.update(256.0)
    amp.save_checkpoint(tmp_path / "a.pt")
    amp.scaler.restart()
    assert amp.load_checkpoint(tmp_path / "a.pt") == {}
    assert amp.scaler.get_scale() == 256.0
    amp.scaler.restart()
    amp.load_checkpoint(tmp_path / "a.pt", scaler=amp.scaler)
    assert amp.scaler.get_scale() == 256.0


def test_wrappers_leave_no_trace_in_the_names(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    for wrapped in (nn.DataParallel(model), torch.compile(model, backend="eager")):
        amp.save_checkpoint(tmp_path / "a.pt", model=wrapped)
        assert set(torch.load(tmp_path / "a.pt", weights_only=True)["model"]) == {"weight", "bias"}
        amp.load_checkpoint(tmp_path / "a.pt", model=wrapped)


# Files of other programs


def foreign(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


@pytest.mark.parametrize("level", ["O0", "O2"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("key", [None, "model", "state_dict", "net", "model_state_dict"])
def test_weights_saved_before_the_migration_load(tmp_path: Path, level: str, prefix: str, key: str | None) -> None:
    plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    weights = {prefix + name: value for name, value in plain.state_dict().items()}
    path = foreign(tmp_path / "old.pth", weights if key is None else {key: weights, "epoch": 4, "arch": "net"})
    model, _ = net(level)
    rest = amp.load_checkpoint(path, model=model)
    assert_equal(dict(model.state_dict()), dict(plain.state_dict()))
    assert rest == ({} if key is None else {"epoch": 4, "arch": "net"})


def test_a_whole_run_of_apex_loads_with_its_scale(tmp_path: Path) -> None:
    plain, optimizer = net()
    step(plain, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    content = {
        "model": "resnet",  # the architecture
        "state_dict": {f"module.{k}": v for k, v in plain.state_dict().items()},
        "optim": optimizer.state_dict(),
        "lr_scheduler": scheduler.state_dict(),
        "amp": {"loss_scaler0": {"loss_scale": 4096.0, "unskipped": 7}},
        "args": argparse.Namespace(lr=0.1, out=Path("x")),
        "best": numpy.float32(0.25),
        "curve": numpy.arange(3.0),
    }
    path = foreign(tmp_path / "old.pth", content)
    amp.shutdown()
    amp.init("O1", dtype="fp16")
    model = amp.prepare_model(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    mine = torch.optim.Adam(model.parameters(), lr=1.0)
    loader = amp.prepare_loader(data.DataLoader(Points(8), batch_size=2))
    ema = amp.EMA(model)
    with pytest.warns(UserWarning, match="no 'ema', which begins with the loaded weights; .*no position of 'loader'"):
        rest = amp.load_checkpoint(
            path,
            model=model,
            optimizer=mine,
            scheduler=torch.optim.lr_scheduler.StepLR(mine, 2),
            ema=ema,
            loader=loader,
        )
    assert amp.scaler.get_scale() == 4096.0 and mine.param_groups[0]["lr"] == 0.01
    assert rest["args"].out == Path("x") and rest["best"] == 0.25 and rest["curve"].tolist() == [0, 1, 2]
    assert_equal(dict(ema.module.state_dict()), dict(plain.state_dict()))


def test_torchs_scaler_and_averages_of_other_libraries_load(tmp_path: Path) -> None:
    weights = nn.Linear(2, 2).state_dict()
    theirs = torch.amp.GradScaler("cpu", init_scale=512.0)
    theirs.scale(torch.ones(()))
    content = {"net": nn.Linear(2, 2).state_dict(), "state_dict_ema": weights, "scaler": theirs.state_dict()}
    path = foreign(tmp_path / "old.pth", content)
    amp.init("O1", dtype="fp16")
    model = nn.Linear(2, 2)
    ema = amp.EMA(model)
    assert amp.load_checkpoint(path, model=model, ema=ema) == {}
    assert torch.equal(ema.module.weight, weights["weight"]) and amp.scaler.get_scale() == 512.0


def test_two_models_need_the_files_own_names(tmp_path: Path) -> None:
    g, d = nn.Linear(2, 2), nn.Linear(2, 2)
    path = foreign(tmp_path / "gan.pth", {"netG": g.state_dict(), "netD_state_dict": d.state_dict()})
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    amp.load_checkpoint(path, netG=a, netD=b)
    assert torch.equal(a.weight, g.weight) and torch.equal(b.weight, d.weight)
    with pytest.raises(RuntimeError, match="has no 'generator'; it has: netG, netD_state_dict"):
        amp.load_checkpoint(path, generator=a, discriminator=b)


def test_a_trusted_file_may_hold_the_model_itself(tmp_path: Path) -> None:
    for content in (Net(), {"model": Net()}):
        path = foreign(tmp_path / "whole.pth", content)
        with pytest.raises(RuntimeError, match=r"holds a resuming\.Net, whose code would run.*trusted=True"):
            amp.load_checkpoint(path, model=Net())
        model = Net()
        amp.load_checkpoint(path, model=model, trusted=True)
        whole = content["model"] if isinstance(content, dict) else content
        assert torch.equal(model.first.weight, whole.first.weight)


# What does not fit


def test_weights_that_do_not_fit_are_named_briefly(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    amp.save_checkpoint(path, model=nn.Sequential(*[nn.Linear(1, 1) for _ in range(6)]))
    with pytest.raises(RuntimeError) as caught:
        amp.load_checkpoint(path, model=nn.ModuleDict({"a": nn.Linear(1, 1)}))
    message = str(caught.value)
    assert "'model' in the file does not fit this ModuleDict" in message and "missing 2: a.weight, a.bias" in message
    assert "unexpected 12: 0.weight, 0.bias, 1.weight, 1.bias, 2.weight and 7 more" in message
    with pytest.raises(RuntimeError, match=r"other shape: 0.weight \(torch.Size\(\[1, 1\]\) in the file, "):
        amp.load_checkpoint(path, model=nn.Sequential(nn.Linear(2, 1)))
    with pytest.warns(UserWarning, match=r"model: missing 2: a.weight"):
        amp.load_checkpoint(path, model=nn.ModuleDict({"a": nn.Linear(1, 1)}), strict=False)


def test_parts_that_are_missing_or_do_not_fit_are_errors(tmp_path: Path) -> None:
    model, optimizer = net()
    path = tmp_path / "a.pt"
    amp.save_checkpoint(path, model=model, optimizer=optimizer)
    with pytest.raises(RuntimeError, match=r"has no 'optimiser'; it has: optimizer"):
        amp.load_checkpoint(path, model=model, optimiser=optimizer)
    with pytest.warns(
        UserWarning, match=r"it has no 'ema', which begins with the loaded weights; it has no 'scheduler'"
    ):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        amp.load_checkpoint(path, model=model, scheduler=scheduler, ema=amp.EMA(model), strict=False)
    small = torch.optim.Adam([model[0].weight])
    with pytest.raises(
        RuntimeError, match="'optimizer' in the file does not fit this Adam: loaded state dict contains"
    ):
        amp.load_checkpoint(path, optimizer=small)
    with pytest.raises(RuntimeError, match="no position of 'loader'"):
        amp.load_checkpoint(path, loader=amp.prepare_loader(data.DataLoader(Points(4))))
    with pytest.raises(TypeError, match=r"got epoch=0, which has no load_state_dict; .*saved\['epoch'\]"):
        amp.load_checkpoint(path, model=model, epoch=0)


def test_files_that_are_none_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with pytest.raises(FileNotFoundError, match=r"a\.pt"):
        amp.load_checkpoint(path, model=Net())
    amp.save_checkpoint(path, model=Net())
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"hello"):
        path.write_bytes(content)
        with pytest.raises(RuntimeError, match=r"a\.pt' is damaged, or no checkpoint file: "):
            amp.load_checkpoint(path, model=Net())
    with pytest.raises(RuntimeError, match="holds a list and no dictionary of states"):
        amp.load_checkpoint(foreign(path, [1]), model=Net())
    torch.save({"amp_checkpoint": {"format": 99, "ranks": []}}, path)
    with pytest.raises(RuntimeError, match="has format 99; this amp_runtime reads up to 1"):
        amp.load_checkpoint(path)


def test_objects_that_need_trust_are_told_when_they_are_saved(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with pytest.warns(UserWarning, match=r"'config' holds test_runtime_saving\.Config, .*vars\(config\)"):
        amp.save_checkpoint(path, config={"inner": [Config()]})
    with pytest.raises(RuntimeError, match=r"holds a test_runtime_saving\.Config"):
        amp.load_checkpoint(path)
    assert isinstance(amp.load_checkpoint(path, trusted=True)["config"]["inner"][0], Config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        args = argparse.Namespace(lr=0.1, shape=(1, 2), out=Path("x"), device=torch.device("cpu"), seen={1, 2})
        amp.save_checkpoint(path, args=args, array=numpy.arange(4), dtype=torch.float16, numbers={numpy.int64(3): None})
    rest = amp.load_checkpoint(path)
    assert rest["args"] == args and rest["array"].tolist() == [0, 1, 2, 3] and rest["numbers"] == {3: None}


class Config:
    pass


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep=-1"):
        amp.save_checkpoint(tmp_path / "a.pt", keep=-1)
    with pytest.raises(ValueError, match="'amp_checkpoint'"):
        amp.save_checkpoint(tmp_path / "a.pt", amp_checkpoint=1)
    with pytest.raises(TypeError, match="as the path"):
        amp.save_checkpoint({"model": 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not prepared"):
        amp.save_checkpoint(tmp_path / "a.pt", loader=data.DataLoader(Points(4)))
    assert list(tmp_path.iterdir()) == []


# Other numbers of processes


def test_a_file_of_other_ranks_is_taken_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pt"
    torch.manual_seed(1)
    amp.save_checkpoint(path)
    content = torch.load(path, weights_only=True)
    other = copy.deepcopy(content["amp_checkpoint"]["ranks"][0])
    other["rng"]["torch"] = torch.Generator().manual_seed(2).get_state()
    content["amp_checkpoint"]["ranks"].append(other)
    drawn: list[float] = []
    for alike in (False, True):
        if alike:
            content["amp_checkpoint"]["ranks"] = [other, other]
        torch.save(content, path)
        for rank in (0, 1, 2, 3):
            monkeypatch.setattr(context, "rank", rank)
            torch.manual_seed(50)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                amp.load_checkpoint(path)
            told = [str(warning.message) for warning in caught]
            assert len(told) == (rank == 0) and all("saved by 2 process(es)" in line for line in told)
            drawn.append(torch.rand(()).item())
    seeded = [torch.rand((), generator=torch.Generator().manual_seed(seed)).item() for seed in (1, 2)]
    assert drawn[:2] == seeded, "ranks that were there go on"
    assert len(set(drawn[:4])) == 4, "those that were not have numbers of their own"
    assert drawn[4:] == [seeded[1]] * 4, "unless all drew the same"


def test_turns_are_refused_because_all_ranks_have_to_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(context, "world_size", 2)
    monkeypatch.setattr(ranks, "inside_main_process_first", lambda: True)
    with pytest.raises(RuntimeError, match=r"amp\.save_checkpoint was called inside amp\.main_process_first"):
        amp.save_checkpoint(tmp_path / "a.pt")
    with pytest.raises(RuntimeError, match=r"amp\.load_checkpoint was called inside amp\.main_process_first"):
        amp.load_checkpoint(tmp_path / "a.pt")


# Faults while the file is written


@pytest.mark.heavy
def test_kill_9_while_it_is_written_keeps_the_old_file(tmp_path: Path) -> None:
    path, script = tmp_path / "last.pt", tmp_path / "save.py"
    script.write_text(
        "import sys, torch, amp_runtime as amp\n"
        "for number in range(10**6):\n"
        "    tensors = [torch.full((1 << 18,), float(number)) for _ in range(32)]\n"
        "    amp.save_checkpoint(sys.argv[1], tensors=tensors, number=number)\n"
        "    print(number, flush=True)\n"
    )
    killed_in_the_middle = 0
    for attempt in range(8):
        process = subprocess.Popen([sys.executable, str(script), str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            process.stdout.readline()  # one whole file is there
            temporary = tmp_path / f".last.pt.{socket.gethostname()}.{process.pid}.tmp"
            deadline = time.monotonic() + 60
            while not (temporary.exists() and _size(temporary) > 1 << (18 + attempt % 4)):
                assert time.monotonic() < deadline and process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        killed_in_the_middle += temporary.exists()
        saved = amp.load_checkpoint(path)
        assert all(torch.equal(t, torch.full((1 << 18,), float(saved["number"]))) for t in saved["tensors"])
        if killed_in_the_middle == 2:
            break
    assert killed_in_the_middle, "no attempt hit a write"
    assert list(tmp_path.glob(".*.tmp"))
    amp.save_checkpoint(path)
    assert not list(tmp_path.glob(".*.tmp")), "what killed processes left is removed"


def test_files_of_living_processes_and_of_other_machines_are_left_alone(tmp_path: Path) -> None:
    path, here = tmp_path / "a[1].pt", socket.gethostname()
    names = [f".a[1].pt.{here}.1.tmp", f".a[1].pt.{here}.2.link.tmp", ".a[1].pt.elsewhere.3.tmp", ".a[1].pt.old.4.tmp"]
    for name in names:
        (tmp_path / name).write_text("half")
    os.utime(tmp_path / names[3], (0, 0))
    holder = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holder, str(tmp_path / names[0])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        amp.save_checkpoint(path)
        assert sorted(os.listdir(tmp_path)) == sorted(["a[1].pt", names[0], names[2]])
        process.stdin.close()
    amp.save_checkpoint(path)
    assert sorted(os.listdir(tmp_path)) == sorted(["a[1].pt", names[2]])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_a_failed_write_keeps_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.pt"
    amp.save_checkpoint(path, number=1)

    def full(content: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        amp.save_checkpoint(path, keep=2, number=2)
    assert amp.load_checkpoint(path)["number"] == 1 and os.listdir(tmp_path) == ["last.pt"]


def test_the_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (happened.append("fsync"), fsync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (happened.append("replace"), replace(a, b))[1])
    write_atomically(tmp_path / "a", lambda file: file.write(b"x"))
    assert happened == ["fsync", "replace", "fsync"]


def test_earlier_files_stay_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "folder" / "last.pt"
    for number in range(5):
        if number == 3:  # a file system without hard links

            def refused(*_: Any) -> None:
                raise OSError("no links")

            monkeypatch.setattr(os, "link", refused)
        amp.save_checkpoint(path, keep=2, number=number)
        names = sorted(os.listdir(path.parent))
        assert names == ["last.1.pt", "last.2.pt", "last.pt"][-1 - min(number, 2) :] or number in (1,)
    found = {name: amp.load_checkpoint(path.parent / name)["number"] for name in os.listdir(path.parent)}
    assert found == {"last.pt": 4, "last.1.pt": 3, "last.2.pt": 2}


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link.pt").symlink_to(tmp_path / "there.pt")
    amp.save_checkpoint(tmp_path / "link.pt", number=1)
    assert (tmp_path / "link.pt").is_symlink() and amp.load_checkpoint(tmp_path / "there.pt")["number"] == 1


def test_the_position_of_a_timed_loader_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    timed = amp.StepTimer()(amp.prepare_loader(data.DataLoader(Points(6), batch_size=2)))
    for _ in timed:
        amp.save_checkpoint(path, loader=timed)
        break
    rest = amp.StepTimer()(amp.prepare_loader(data.DataLoader(Points(6), batch_size=2)))
    amp.load_checkpoint(path, loader=rest)
    assert sum(1 for _ in rest) == 2


def test_saving_changes_nothing(tmp_path: Path) -> None:
    amp.init("O2", dtype="bf16")
    states = []
    for saves in (False, True):
        run = Run(1)
        for until in (2, 4, 6):
            run.train(until)
            if saves:
                amp.save_checkpoint(tmp_path / "a.pt", **run.parts())
        states.append(run.everything())
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
