"""What launchers put into the environment, and real launches of each kind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import amp_runtime as amp
import pytest
import torch
from launching import SECONDS, Launcher, free_port, torchrun

VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_LOCALID", "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE",
    "MPI_LOCALRANKID", "PALS_LOCAL_RANKID",
)  # fmt: skip

SCRIPT = """
import os, sys
import amp_runtime as amp, torch
amp.init("O0", ddp=True)
torch.manual_seed(0)
model = amp.prepare_model(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
for step in range(3):
    optimizer.zero_grad()
    model(torch.full((1, 2), 1.0 + amp.rank())).sum().backward()
    amp.scaler.step(optimizer)
    if os.environ.get("FAIL_ONCE") and attempt == 0 and step == 1 and amp.rank() == 1:
        sys.exit(3)
    amp.scaler.update()
with amp.main_process_first():
    pass
path = os.path.join(os.environ["CHECK_DIR"], f"{amp.rank()}.txt")
with open(path, "a") as file:
    file.write(f"{amp.local_rank()} of {amp.world_size()}, attempt {attempt}, {model.weight.tolist()}\\n")
"""


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def reports(directory: Path, ranks: int = 2) -> list[str]:
    lines = [(directory / f"{rank}.txt").read_text().splitlines() for rank in range(ranks)]
    assert all(len(line) == 1 for line in lines), "each rank came to the end once"
    assert len({line[0].split("attempt")[1] for line in lines}) == 1, "with the same weights"
    return [line[0] for line in lines]


def start(commands: list[list[str]], directory: Path) -> None:
    clean = {k: v for k, v in os.environ.items() if k != "AMP_OPT_LEVEL"}
    clean.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", CHECK_DIR=str(directory))
    processes = [subprocess.Popen(command, env=clean, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        for process in processes:
            _, stderr = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, stderr[-3000:]
    finally:
        for process in processes:
            process.kill()


def start_ranks(launcher: Launcher, script: Path, directory: Path, own: Sequence[dict[str, str]] = ({}, {})) -> None:
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environments = [{**common, "RANK": str(rank), **more} for rank, more in enumerate(own)]
    finished = launcher.each(script, directory, environments)
    assert finished.returncode == 0, finished.stderr[-3000:]


@pytest.mark.heavy
def test_the_environment_of_another_launcher_without_local_rank(
    script: Path, launcher: Launcher, tmp_path: Path
) -> None:
    start_ranks(launcher, script, tmp_path)
    assert [line.split(",")[0] for line in reports(tmp_path)] == ["0 of 2", "1 of 2"], "counted by host name"


@pytest.mark.heavy
def test_two_nodes(script: Path, launcher: Launcher, tmp_path: Path) -> None:
    common = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    start_ranks(launcher, script, tmp_path, [{**common, "GROUP_RANK": str(node)} for node in range(2)])
    assert [line.split(",")[0] for line in reports(tmp_path)] == ["0 of 2", "0 of 2"], "each is the first of its node"


@pytest.mark.slow
def test_two_nodes_by_torchrun(script: Path, tmp_path: Path) -> None:
    port = str(free_port())
    nodes = [
        [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--node-rank",
            str(node), "--master-addr", "127.0.0.1", "--master-port", port, str(script),
        ]
        for node in range(2)
    ]  # fmt: skip
    start(nodes, tmp_path)
    assert [line.split(",")[0] for line in reports(tmp_path)] == ["0 of 2", "0 of 2"], "each is the first of its node"


@pytest.mark.slow  # a restart after a killed rank is tried every time, in test_runtime_saving.py
def test_an_elastic_restart_comes_up_cleanly(script: Path, tmp_path: Path) -> None:
    finished = torchrun(script, tmp_path, "--max-restarts", "1", FAIL_ONCE="1")
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert all("attempt 1" in line for line in reports(tmp_path))


@pytest.mark.heavy
def test_a_script_that_made_its_own_group(launcher: Launcher, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
        + SCRIPT
        + "amp.shutdown()\nassert dist.is_initialized()\ndist.destroy_process_group()\n"
    )
    start_ranks(launcher, path, tmp_path)
    assert [line.split(",")[0] for line in reports(tmp_path)] == ["0 of 2", "1 of 2"]


GROUP_OF_ITS_OWN = """
import sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
"""
HELD = """
sys.setswitchinterval(100)  # a thread of gloo gets the GIL when this one waits, and not before
dist.all_reduce(torch.zeros(1), async_op=True)
end = time.monotonic() + 0.5
while time.monotonic() < end:
    pass
"""


@pytest.mark.heavy
@pytest.mark.parametrize("end", ["amp.shutdown()\ndist.destroy_process_group()\n", ""])
def test_threads_of_gloo_need_no_gil_when_their_group_ends(launcher: Launcher, tmp_path: Path, end: str) -> None:
    """Otherwise two threads wait for each other, or the last tensor of an exchange aborts the process, status -6."""
    path = tmp_path / "train.py"
    path.write_text(GROUP_OF_ITS_OWN + SCRIPT + HELD + end)
    start_ranks(launcher, path, tmp_path)
    assert [line.split(",")[0] for line in reports(tmp_path)] == ["0 of 2", "1 of 2"]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "2"}, "not RANK, MASTER_ADDR, MASTER_PORT; start the script with torchrun"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "1"}, "but not MASTER_ADDR;"),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK='2'.*allowed.*0 to 1"),
        ({"WORLD_SIZE": "2", "RANK": "x", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK='x'.*allowed.*0 to 1"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0'"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "-1"}, "LOCAL_RANK='-1'"),
    ],
)
def test_an_incomplete_environment_is_named(
    environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        amp.init("O0", ddp=True)
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, 1),
        ({"SLURM_LOCALID": "3"}, 3),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, 2),
        ({"RANK": "5"}, None),
    ],
)
def test_the_local_rank_of_each_launcher(
    environment: dict[str, str], expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amp_runtime._distributed.launch import announced_local_rank

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert announced_local_rank() == expected


@pytest.mark.parametrize(
    ("environment", "backend", "gpus", "expected"),
    [
        ({"LOCAL_RANK": "3"}, None, 4, 3),
        ({"LOCAL_RANK": "4"}, None, 4, "LOCAL_RANK=4 but this machine shows 4 GPU"),
        ({"LOCAL_RANK": "5"}, "gloo", 4, 1),
        ({"LOCAL_RANK": "1"}, None, 1, "shows 1 GPU"),
        ({"SLURM_LOCALID": "1"}, None, 1, 0),
    ],
)
def test_each_process_takes_its_gpu(
    environment: dict[str, str], backend: str | None, gpus: int, expected: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amp_runtime._distributed import group

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    local_rank = int(next(iter(environment.values())))
    if isinstance(expected, str):
        with pytest.raises(RuntimeError, match=expected):
            group._take_gpu(local_rank, backend)
    else:
        group._take_gpu(local_rank, backend)
        assert taken == [expected]


@pytest.mark.parametrize(("given", "gpus", "expected"), [("cuda:2", 4, 2), ("cuda:0", 1, 0), ("cpu", 2, 1), ("", 2, 1)])
def test_in_a_group_of_somebody_else_a_process_takes_the_gpu_that_it_was_given(
    given: str, gpus: int, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a worker of Ray Train with several GPUs, or one that sees only its own."""
    from amp_runtime._distributed import group

    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", given)
    taken: list[int] = []
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "set_device", taken.append)
        group.join_group(None)
    finally:
        torch.distributed.destroy_process_group()
    assert taken == [expected]


def test_alone_the_collectives_return_what_they_got() -> None:
    model, tensor = torch.nn.Linear(2, 2), torch.ones(3)
    assert amp.share_of(7) == 7 and amp.share_of(7, [1]) == 7 and amp.sum_of_shares(tensor, [1]) is tensor
    assert amp.reduce_max(tensor) is tensor and amp.reduce_min(2.0) == 2.0 and amp.reduce_sum({"a": 1}) == {"a": 1}
    assert amp.reduce_mean(tensor, weight=3) is tensor
    assert amp.gather(tensor).tolist() == [1.0] * 3 and amp.gather(tensor, length=2).tolist() == [1.0] * 2
    assert amp.gather({"a": 3})["a"].tolist() == [3]
    with pytest.raises(ValueError, match="length=-1"):
        amp.gather(tensor, length=-1)
    with amp.no_sync(model):
        model(torch.ones(1, 2)).sum().backward()
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    amp.Reducer(model).reduce()
    amp.Reducer([tensor]).reduce()
    assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters(), strict=True) if p.grad is not None)
    assert amp.create_syncbn_process_group(0) is None and amp.create_syncbn_process_group(1) is None
    with pytest.raises(ValueError, match=r"group_size=2 for 1 process\(es\); allowed: 0, 1"):
        amp.create_syncbn_process_group(2)
    norm = torch.nn.BatchNorm1d(2)
    expected = torch.nn.BatchNorm1d(2)(torch.eye(2))
    assert torch.equal(amp.convert_sync_batchnorm(norm)(torch.eye(2)), expected)


def test_before_init_the_environment_tells_who_writes(monkeypatch, tmp_path) -> None:
    assert amp.is_main_process()
    monkeypatch.setenv("RANK", "1")
    assert not amp.is_main_process()
    with amp.on_main(open)(tmp_path / "log.txt", "w") as log:
        log.write("nothing")
    assert not (tmp_path / "log.txt").exists()
    amp.init("O0")
    assert amp.is_main_process(), "one process that was asked for"


def test_a_writer_of_another_rank_closes_the_figures_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    pyplot.close("all")
    writer = amp.on_main(dict)()
    first, second, kept = pyplot.figure(), pyplot.figure(), pyplot.figure()
    writer.add_figure("loss", first, 3)
    writer.add_figure("losses", figure=[second], global_step=3)
    writer.add_figure("kept", kept, close=False)
    writer.add_figure("none", None)
    assert pyplot.get_fignums() == [kept.number]
    pyplot.close("all")
