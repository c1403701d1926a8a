"""Processes that srun or mpirun has started: they get from its variables what torchrun would have given them."""

from __future__ import annotations

import os
import re
import zlib
from typing import NamedTuple

from amp_runtime._distributed.integers import whole_number

_INTERACTIVE = ("bash", "zsh", "sh", "interactive")
_FIRST_PORT, _PORTS = 15_000, 15_000  # below those that systems give to whoever asks for any


class _Launcher(NamedTuple):
    """A command, and the variables by which its processes know of each other.

    Attributes:
        command: what the user types.
        size: the variable with the number of processes.
        rank: that with the number of this process among them.
        local_size: that with the number of processes of its machine; empty if there is none.
        run: those that name the run, the same in all of its processes, as far as they are set.
    """

    command: str
    size: str
    rank: str
    local_size: str
    run: tuple[str, ...]


_SLURM = _Launcher("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "", ("SLURM_JOB_ID", "SLURM_STEP_ID"))
_LAUNCHERS = (
    _SLURM,
    _Launcher(
        "mpirun",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    _Launcher("mpiexec", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", ()),
)
"""Slurm, Open MPI, and MPICH with those made from it, such as Intel's.

Sources: https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES;
https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html
"""


def follow_launcher() -> None:
    """Sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT where srun or mpirun started several processes.

    What the user has set stays, and where WORLD_SIZE is set nothing is done. A step of Slurm that runs a shell to work
    in starts no training. LOCAL_RANK is left out: where it is missing, a process may be shown its own GPU alone.

    Raises:
        ValueError: mpirun started processes on several machines, and MASTER_ADDR does not say which is the first.
    """
    launcher = _launcher()
    if launcher is None:
        return
    given = {
        "WORLD_SIZE": os.environ[launcher.size],
        "RANK": os.environ[launcher.rank],
        "LOCAL_WORLD_SIZE": _tasks_of_this_node() if launcher is _SLURM else os.environ.get(launcher.local_size),
    }
    if not os.environ.get("MASTER_ADDR"):
        given["MASTER_ADDR"] = _first_machine(launcher)
    if not os.environ.get("MASTER_PORT"):
        given["MASTER_PORT"] = str(_port(launcher))
    for name, value in given.items():
        if value is not None:
            os.environ.setdefault(name, value)


def announced_rank() -> int:
    """This process's number among all, as the launcher gives it; 0 where none does."""
    launcher = _launcher()
    return whole_number("RANK" if launcher is None else launcher.rank) or 0


def _launcher() -> _Launcher | None:
    """The command that started several processes, unless torchrun's variables say all already."""
    if "WORLD_SIZE" in os.environ:
        return None
    for launcher in _LAUNCHERS:
        size = whole_number(launcher.size)
        if size is not None and size > 1 and whole_number(launcher.rank) is not None:
            is_shell = launcher is _SLURM and os.environ.get("SLURM_JOB_NAME") in _INTERACTIVE
            return None if is_shell else launcher
    return None


def _first_machine(launcher: _Launcher) -> str:
    if launcher is _SLURM:
        nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
        if nodes and whole_number("SLURM_STEP_NUM_NODES") != 1:
            return first_host(nodes)
    elif os.environ.get(launcher.local_size) != os.environ[launcher.size]:
        raise ValueError(
            f"{launcher.command} started {os.environ[launcher.size]} processes on several machines, and MASTER_ADDR is "
            f"not set; give all of them the first machine's name, as in {launcher.command} -x MASTER_ADDR=node1 with "
            "Open MPI, or -genv MASTER_ADDR node1 with MPICH"
        )
    return "127.0.0.1"


def first_host(nodes: str) -> str:
    """The first of Slurm's list of machines: ``node[03-05,9],gpu1`` begins with ``node03``."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0] if first is not None else nodes)


def _port(launcher: _Launcher) -> int:
    """The same in all processes of a run, and as a rule another one for another run."""
    run = ".".join(filter(None, map(os.environ.get, launcher.run)))
    return _FIRST_PORT + zlib.crc32(run.encode()) % _PORTS if run else 29_500


def _tasks_of_this_node() -> str | None:
    """How many tasks of the step run on this machine; Slurm says ``2(x3),1`` for three with two, and one with one."""
    node = whole_number("SLURM_NODEID") or 0
    counts = []
    for part in os.environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is not None:
            counts += [found[1]] * int(found[2] or 1)
    return counts[node] if node < len(counts) else None
