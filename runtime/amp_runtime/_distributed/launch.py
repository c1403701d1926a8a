"""What the launcher's environment says: how many processes there are, and which of them this one is."""

from __future__ import annotations

import os
import socket
from typing import Any

import torch
import torch.distributed as dist

from amp_runtime._distributed.integers import whole_number

_NEEDED = ("RANK", "MASTER_ADDR", "MASTER_PORT")
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID")


def launched_world_size() -> int:
    """The number of processes that torchrun's environment announces; 1 alone.

    Raises:
        ValueError: ``WORLD_SIZE`` is set and is not a positive integer.
    """
    size = whole_number("WORLD_SIZE", "1")
    if size is None or size < 1:
        raise ValueError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']!r} in the environment is not a positive integer; torchrun sets it"
        )
    return size


def processes_of_this_machine() -> int:
    """How many processes the launcher started here; 1 where it does not say."""
    return max(1, whole_number("LOCAL_WORLD_SIZE", "1") or 1)


def check_launch() -> None:
    """Sees that the environment says all that processes need to find each other.

    Raises:
        ValueError: a variable is missing, or the rank is not below ``WORLD_SIZE``.
    """
    size = launched_world_size()
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        raise ValueError(
            f"WORLD_SIZE={size} in the environment, but not {', '.join(missing)}; start the script with torchrun "
            f"--nproc-per-node {size}, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each process"
        )
    rank = whole_number("RANK", "")
    if rank is None or not 0 <= rank < size:
        raise ValueError(
            f"RANK={os.environ['RANK']!r} in the environment; allowed with WORLD_SIZE={size}: 0 to {size - 1}"
        )


def announced_local_rank() -> int | None:
    """This process's number on its machine as the launcher gives it, or ``None``.

    Raises:
        ValueError: the launcher's variable is not a natural number.
    """
    for name in _LOCAL_RANKS:
        if os.environ.get(name):
            value = whole_number(name, "")
            if value is None or value < 0:
                raise ValueError(f"{name}={os.environ[name]!r} in the environment is not a natural number")
            return value
    return None


def counted_local_rank() -> int:
    """This process's number on its machine: how many of the lower ranks have the same host name. A collective.

    For launchers that give only the rank among all. The names go through the group's own store, because collectives
    on a GPU need the very number that is looked for.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    store = group_store()
    if store is None:
        return rank % max(torch.cuda.device_count(), 1)
    store.set(f"amp/host/{rank}", socket.gethostname())
    names = [store.get(f"amp/host/{other}") for other in range(size)]
    return names[:rank].count(names[rank])


def group_store() -> Any:
    """What the ranks of the group wrote to find each other; ``None`` for a group of the script's own without one."""
    try:
        return dist.distributed_c10d._get_default_store()
    except (AttributeError, ValueError):
        return None
