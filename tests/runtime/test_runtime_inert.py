"""Nothing changes before ``amp.init``, and at O0 in one process."""

from __future__ import annotations

import builtins
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import amp_runtime as amp
import pytest
import torch
import torch.nn.functional as F
from amp_runtime._core.context import context
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.head(self.body(x)))


def dataset() -> TensorDataset:
    return TensorDataset(torch.randn(30, 6), torch.rand(30, 1).round())


def original(optimizer_name: str) -> tuple[list[float], torch.Tensor]:
    torch.manual_seed(0)
    loader = DataLoader(dataset(), batch_size=4, shuffle=True)
    model = Net()
    criterion = nn.BCELoss()
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=0.05)
    losses = []
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
    return losses, torch.rand(4)


def migrated(optimizer_name: str) -> tuple[list[float], torch.Tensor]:
    torch.manual_seed(0)
    with amp.main_process_first():
        data = dataset()
    loader = amp.prepare_loader(DataLoader(data, batch_size=4, shuffle=True))
    model = amp.prepare_model(Net().to(amp.device("cpu")))
    criterion = amp.float_function(nn.BCELoss())
    optimizer = getattr(amp.optim, optimizer_name)(model.parameters(), lr=0.05)
    amp.seed_by_rank()
    losses = []
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            with amp.autocast():
                loss = criterion(model(x), y)
            amp.scaler.scale(loss).backward()
            amp.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            amp.scaler.step(optimizer)
            amp.scaler.update()
            losses.append(loss.item())
    return losses, torch.rand(4)


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SGD", "Adagrad", "RMSprop"])
@pytest.mark.parametrize("started", [False, True])
def test_losses_and_random_numbers_are_those_of_the_original(optimizer: str, started: bool) -> None:
    if started:
        amp.init("O0", ddp=True)
    expected, random_numbers = original(optimizer)
    losses, drawn = migrated(optimizer)
    assert losses == expected
    assert torch.equal(drawn, random_numbers)


def test_the_environment_turns_a_migrated_script_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_OPT_LEVEL", "O0")
    amp.init("O1", dtype="fp16")
    assert amp.opt_level() == "O0"
    assert migrated("Adam")[0] == original("Adam")[0]


@pytest.mark.parametrize("level", ["O0", "O1"])
def test_init_alone_draws_nothing_and_touches_nothing(level: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_rng_state(), random.getstate(), builtins.print
    amp.init(level, ddp=True)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), builtins.print)
    assert not torch.distributed.is_initialized()
    assert capsys.readouterr() == ("", "")


def test_alone_at_o0_objects_come_back_untouched() -> None:
    amp.init("O0", ddp=True)
    model = Net()
    attributes = {key: dict(value) if isinstance(value, dict) else value for key, value in vars(model).items()}
    assert amp.prepare_model(model) is model
    assert amp.prepare_model(model, delay_allreduce=True) is model
    assert vars(model) == attributes
    for loader in (DataLoader(dataset()), [1, 2], iter([1])):
        assert amp.prepare_loader(loader) is loader
    loss = torch.ones(())
    assert amp.scaler.scale(loss) is loss
    assert amp.scaler.get_scale() == 1.0 and amp.scaler.state_dict() == {}
    assert amp.device("cpu") == torch.device("cpu") and amp.device("cuda:1") == torch.device("cuda:1")
    assert amp.device(torch.device("meta")) == torch.device("meta")
    torch.cuda.set_device(amp.device(-1))  # scripts write -1 for the CPU, which sets nothing
    assert amp.on_main(list)("ab") == ["a", "b"]
    assert amp.reduce_mean(loss) is loss and amp.unwrap(model) is model
    assert amp.is_main_process() and (amp.rank(), amp.local_rank(), amp.world_size()) == (0, 0, 1)
    amp.barrier()


def test_verbose_says_one_line_and_nothing_at_o0(capsys: pytest.CaptureFixture[str]) -> None:
    amp.init("O0", verbose=True)
    assert capsys.readouterr().out == ""
    amp.init("O1", dtype="bf16", verbose=True)
    assert capsys.readouterr().out.count("\n") == 1


def test_a_device_that_is_named_before_init_is_the_ranks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert amp.device("cuda:0") == torch.device("cuda:0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert amp.device("cuda:0") == torch.device("cuda:1")
    assert amp.device("cpu") == torch.device("cpu") and amp.device("meta") == torch.device("meta")
    amp.init("O1")
    assert amp.device("cuda:0") == torch.device("cuda:0"), "this script trains alone"


@pytest.mark.parametrize("connected", [False, True])
def test_more_processes_without_ddp_are_warned_of_once_at_a_step(
    monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        amp.scaler.step(optimizer)
        amp.init("O1")
        assert not caught, "neither before init nor in it"
        if connected:
            monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        for _ in range(2):
            amp.scaler.step(optimizer)
    assert [str(w.message).split(",")[0] for w in caught] == ([] if connected else ["4 processes were started"])
    assert all(w.filename == __file__ for w in caught)
    assert amp.world_size() == 1


SPAWNING = """
import os, sys, warnings
import amp_runtime as amp, torch
from amp_runtime._core.context import context as amp_context
from torch.utils.data import DataLoader

def start(**options):
    amp.init("O2", **options)

torch.manual_seed(1)
before = torch.get_rng_state()
start(ddp=True)  # not in the worker: MASTER_ADDR is missing, and rank 0 does not answer
if __name__ == "__mp_main__":
    assert torch.equal(before, torch.get_rng_state()) and not torch.distributed.is_initialized()
    assert amp.opt_level() == "O0" and print.__module__ == "builtins"
    start(ddp=False)
    assert amp.opt_level() == "O2"
    start(ddp=True, num_losses=2)

class Data:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        print("item", index, __name__)
        return index

def train(rank, address):
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    amp.init(opt_level="O1")
    assert amp.opt_level() == "O1" and amp.world_size() == 1
    assert amp_context.num_losses == 1, "a call that does nothing is not kept"
    os.environ["WORLD_SIZE"] = "2"
    warnings.simplefilter("error")
    amp.scaler.step(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]))
    amp.init(opt_level="O1", ddp=True)
    assert amp.world_size() == 2 and amp.rank() == rank

if __name__ == "__main__":
    os.environ.update(WORLD_SIZE="2", RANK="1", LOCAL_RANK="1")
    for method in ("spawn", "forkserver"):
        list(DataLoader(Data(), num_workers=1, multiprocessing_context=method))
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        del os.environ[name]
    torch.multiprocessing.spawn(train, ("file://" + sys.argv[1],), nprocs=2)
"""


@pytest.mark.heavy
def test_a_spawned_worker_is_no_rank_and_a_spawned_training_is(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SPAWNING)
    finished = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "meeting")],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert finished.stdout.count("item 1 __mp_main__") == 2, "print works in the workers"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"opt_level": "01"}, ["'01'", "O0", "O3"]),
        ({"dtype": "half"}, ["'half'", "fp16", "bf16"]),
        ({"loss_scale": 0}, ["0", "dynamic"]),
        ({"loss_scale": "static"}, ["'static'", "dynamic"]),
        ({"backend": "mpi"}, ["'mpi'", "gloo", "nccl"]),
    ],
)
def test_wrong_settings_are_repeated_and_the_right_ones_listed(arguments: Any, named: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        amp.init(**arguments)
    assert all(name in str(caught.value) for name in named)
    assert amp.opt_level() == "O0", "a refused call changes nothing"


def test_switches_may_be_strings() -> None:
    amp.init("O1", ddp="False", sync_bn="False", verbose="False")  # type: ignore[arg-type]
    assert (context.sync_bn, context.verbose) == (False, False)
    with pytest.raises(ValueError, match=r"sync_bn='no'; allowed: True, False"):
        amp.init("O1", sync_bn="no")  # type: ignore[arg-type]


def test_a_wrong_level_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_OPT_LEVEL", "fast")
    with pytest.raises(ValueError, match=r"AMP_OPT_LEVEL='fast'.*'O0'"):
        amp.init("O1")


def test_wrong_objects_are_refused_with_advice() -> None:
    with pytest.raises(TypeError, match="Module"):
        amp.prepare_model(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="DataLoader"):
        amp.prepare_loader(3)
    with pytest.raises(ValueError, match=r"'keep'.*'pad'"):
        amp.prepare_loader([], uneven="keep")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"BCELoss\(\)"):
        amp.float_function(nn.BCELoss)
    with pytest.raises(TypeError, match="on_main"):
        amp.on_main(3)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="NoSuchOptimizer"):
        amp.optim.NoSuchOptimizer  # noqa: B018


@pytest.mark.heavy
def test_importing_is_light() -> None:
    program = (
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import amp_runtime\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - {'amp_runtime', 'torch'}\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert new <= set(sys.stdlib_module_names), new\n"
        "assert all(hasattr(amp_runtime, name) for name in amp_runtime.__all__)\n"
        "assert type(amp_runtime.scaler).__name__ == 'Scaler'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_functional_losses_agree_through_float_function() -> None:
    a, b = torch.rand(3), torch.rand(3)
    assert torch.equal(amp.float_function(F.binary_cross_entropy)(a, b), F.binary_cross_entropy(a, b))
