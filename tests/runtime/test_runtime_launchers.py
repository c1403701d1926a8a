"""Processes that srun, mpirun and mpiexec start, by the variables that these give them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import amp_runtime as amp
import pytest
from amp_runtime._distributed import launchers
from launching import Launcher, free_port

NAMES = re.compile(r"^(SLURM_|OMPI_|PMIX?_|MPI_|MASTER_|LOCAL_|WORLD_SIZE$|RANK$)")
ONE_NODE = {"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n[7-9]"}


def slurm(rank: int, size: int = 2) -> dict[str, str]:
    own = {"SLURM_STEP_NUM_TASKS": str(size), "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
    return {**ONE_NODE, **own, "SLURM_STEP_TASKS_PER_NODE": str(size)}


def open_mpi(rank: int, size: int = 2) -> dict[str, str]:
    counts = {"OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_LOCAL_SIZE": str(size)}
    return {
        **counts,
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "PMIX_NAMESPACE": "r1",
    }


def mpich(rank: int, size: int = 2) -> dict[str, str]:
    counts = {"PMI_SIZE": str(size), "MPI_LOCALNRANKS": str(size)}
    return {**counts, "PMI_RANK": str(rank), "MPI_LOCALRANKID": str(rank)}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if NAMES.match(name)]:
        monkeypatch.delenv(name)
    return monkeypatch


def followed(environment: pytest.MonkeyPatch, variables: dict[str, str]) -> dict[str, str]:
    """What is set beside what was there."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environment.setenv(name, "")  # so that it is taken back at the end
        environment.delenv(name)
    for name, value in variables.items():
        environment.setenv(name, value)
    before = dict(os.environ)
    launchers.follow_launcher()
    return {name: value for name, value in os.environ.items() if name not in before}


@pytest.mark.parametrize("start", [slurm, open_mpi, mpich])
def test_processes_of_one_machine_meet_on_it(start, environment: pytest.MonkeyPatch) -> None:
    given = [followed(environment, start(rank)) for rank in (0, 1)]
    ports = {variables.pop("MASTER_PORT") for variables in given}
    assert len(ports) == 1 and 15_000 <= int(ports.pop()) < 30_000
    assert given == [
        {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"} for rank in "01"
    ]


def test_those_of_several_machines_meet_on_the_first(environment: pytest.MonkeyPatch) -> None:
    nodes = {"SLURM_STEP_NUM_NODES": "3", "SLURM_NODEID": "2", "SLURM_STEP_TASKS_PER_NODE": "3(x2),2"}
    given = followed(environment, {**slurm(7, 8), **nodes})
    assert (given["MASTER_ADDR"], given["LOCAL_WORLD_SIZE"]) == ("n7", "2")


def test_another_job_meets_at_another_port(environment: pytest.MonkeyPatch) -> None:
    ports = {followed(environment, {**slurm(0), "SLURM_JOB_ID": str(job)})["MASTER_PORT"] for job in range(50)}
    assert len(ports) > 45


def test_what_the_user_says_stays(environment: pytest.MonkeyPatch) -> None:
    given = followed(environment, {**slurm(1), "MASTER_ADDR": "ib0", "MASTER_PORT": "77"})
    assert given == {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    assert followed(environment, {**slurm(1), "WORLD_SIZE": "1"}) == {}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {**slurm(0), "SLURM_STEP_NUM_TASKS": "1"},
        {name: value for name, value in slurm(0).items() if name != "SLURM_PROCID"},
        {**slurm(0), "SLURM_JOB_NAME": "bash"},
        {**open_mpi(0), "OMPI_COMM_WORLD_SIZE": "many"},
    ],
)
def test_a_process_alone_stays_alone(variables: dict[str, str], environment: pytest.MonkeyPatch) -> None:
    assert followed(environment, variables) == {}


@pytest.mark.parametrize("start", [open_mpi, mpich])
def test_mpi_over_machines_needs_the_first_ones_name(start, environment: pytest.MonkeyPatch) -> None:
    local = {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MPI_LOCALNRANKS": "1"}
    with pytest.raises(ValueError, match=r"2 processes on several machines, and MASTER_ADDR is not set"):
        followed(environment, {**start(0), **local})
    assert followed(environment, {**start(1), **local, "MASTER_ADDR": "node1"})["RANK"] == "1"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("node[03-05,9],gpu1", "node03"),
        ("r[1-2]n[07,9].ib", "r1n07.ib"),
        ("gpu-a,node[1-3]", "gpu-a"),
    ],
)
def test_the_first_of_slurms_list(nodes: str, first: str) -> None:
    assert launchers.first_host(nodes) == first


@pytest.mark.parametrize("start", [slurm, open_mpi, mpich])
def test_the_main_process_is_known_before_the_start(start, environment: pytest.MonkeyPatch) -> None:
    for rank in (0, 1):
        for name, value in start(rank).items():
            environment.setenv(name, value)
        assert amp.is_main_process() == (rank == 0)


SCRIPT = """
import amp_runtime as amp
first = amp.is_main_process()
amp.init("O0", ddp=True)
total = amp.reduce_sum(float(amp.rank() + 1))
assert first == amp.is_main_process()
# In one piece: the processes write to the same pipe.
print(f"{amp.rank()} {amp.local_rank()} {amp.world_size()} {total}\\n", end="", force=True)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("start", [slurm, open_mpi, mpich])
def test_processes_train_together_without_torchrun(start, launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    # A port that is free: another run of this test may have the one that is computed.
    port = str(free_port())
    finished = launcher.each(script, tmp_path, [{**start(rank), "MASTER_PORT": port} for rank in (0, 1)])
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert sorted(finished.stdout.split("\n")) == ["", "0 0 2 3.0", "1 1 2 3.0"]
