"""The process group: its start, its end, and small collectives."""

from __future__ import annotations

import atexit
import importlib
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from amp_runtime._core.callers import stacklevel
from amp_runtime._core.context import context
from amp_runtime._core.randomness import random_state, set_random_state
from amp_runtime._distributed import engine, failing, gloo, output
from amp_runtime._distributed.launch import (
    announced_local_rank,
    check_launch,
    counted_local_rank,
    group_store,
    launched_world_size,
)
from amp_runtime._distributed.launchers import announced_rank, follow_launcher
from amp_runtime._distributed.meeting import agreed_token
from amp_runtime._distributed.objects import all_objects, broadcast_object
from amp_runtime._distributed.passes import end_passes

T = TypeVar("T")
_depth_of_main_process_first = 0


def warn_of_training_alone() -> None:
    """Warns once if several processes were started and neither ``amp.init`` nor the script connected them.

    At the first step and not in ``amp.init``, after which a script may still make the process group itself.
    """
    if not context.initialised or context.launch_checked:
        return
    context.launch_checked = True
    if context.distributed or (dist.is_available() and dist.is_initialized()):
        return
    try:
        size = launched_world_size()
    except ValueError:
        return  # the variable may belong to another program
    if size > 1:
        warnings.warn(
            f"{size} processes were started, but amp.init has ddp=False: each of them trains alone. Pass ddp=True "
            "to train together.",
            stacklevel=stacklevel(),
        )


def join_group(backend: str | None) -> None:
    """Joins the other processes, or does nothing when this one is alone.

    A group that the script has already made is used as it is.

    Raises:
        RuntimeError: more processes than GPUs were started on this machine for NCCL.
        ValueError: the environment is incomplete or contradicts itself.
    """
    ready = dist.is_available() and dist.is_initialized()
    if context.distributed:
        return
    if not ready:
        follow_launcher()
        if launched_world_size() == 1:
            return
    if not dist.is_available():
        raise RuntimeError("several processes were started, but this build of torch has no torch.distributed")
    local_rank = announced_local_rank()
    if not ready:
        check_launch()
        if local_rank is not None:
            _take_gpu(local_rank, backend)  # before the group is made, which may ask for the current device
        # Its functions take the default group as a default argument when it is imported, which torch does at the first
        # optimizer step. Imported here they take none, so that the group's threads end with the group: a thread that
        # outlives it can abort the process when the interpreter ends.
        importlib.import_module("torch.distributed.nn.functional")
        dist.init_process_group(backend or _default_backend(), **_store_of_this_attempt())
        context.owns_group = True
    if local_rank is None:
        local_rank = counted_local_rank()
    if not (ready and _took_given_gpu()):
        _take_gpu(local_rank, backend)
    if dist.get_world_size() == 1:
        return
    context.local_rank = local_rank
    context.rank = dist.get_rank()
    context.world_size = dist.get_world_size()
    copy_random_state()
    output.silence(context.rank != 0, group_store())
    failing.watch_errors()


def _store_of_this_attempt() -> dict[str, Any]:
    """Where the ranks find one another in the store of torchrun's agents; nothing where these have none for them.

    Such a store can outlive a group, and torch does not tell a group that is made after a restart, or a second time,
    from the one before: a rank may find the address of a process that has ended.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    rank, size = int(os.environ["RANK"]), launched_world_size()
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*address, is_master=False)  # type: ignore[attr-defined]
    token = agreed_token(store, rank, size, dist.default_pg_timeout)
    return {"store": dist.PrefixStore(f"amp/{token}", store), "rank": rank, "world_size": size}  # type: ignore[attr-defined]


def _take_gpu(local_rank: int, backend: str | None) -> None:
    """Makes the GPU of this rank the current one, where there are GPUs."""
    if not torch.cuda.is_available():
        return
    count = torch.cuda.device_count()
    bound = count == 1 and "LOCAL_RANK" not in os.environ  # srun can show each process its own GPU only
    if local_rank >= count and backend != "gloo" and not bound:
        raise RuntimeError(
            f"LOCAL_RANK={local_rank} but this machine shows {count} GPU(s); start at most {count} "
            "process(es) a machine, or share GPUs with amp.init(backend='gloo')"
        )
    torch.cuda.set_device(local_rank % count)


def _took_given_gpu() -> bool:
    """Takes the GPU that the maker of the group gave this process, where it says which; whether it did.

    Ray Train does. Its workers may have several GPUs each, or see their own only, and then the local rank is no number
    of a GPU.
    """
    given = re.fullmatch(r"cuda:(\d+)", os.environ.get("ACCELERATE_TORCH_DEVICE", ""))
    if given is None or not torch.cuda.is_available() or int(given[1]) >= torch.cuda.device_count():
        return False
    torch.cuda.set_device(int(given[1]))
    return True


def leave_group() -> None:
    """Undoes :func:`join_group`. Waits for nobody, so that a crash elsewhere cannot hang this process."""
    output.restore()
    failing.stop_watching_errors()
    gloo.settle()  # a script that made the group may end it next
    if context.owns_group and dist.is_available() and dist.is_initialized() and not failing.has_failed():
        engine.release_all()
        dist.destroy_process_group()
    context.owns_group = False
    context.rank = context.local_rank = 0
    context.world_size = 1


# Also for a group that the script made. It is left as it is: the system ends it with the process.
atexit.register(gloo.settle)


def _default_backend() -> str:
    # Both on CUDA: barriers, flags and CPU buffers then need no GPU and are not under NCCL's short timeout.
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def copy_random_state() -> None:
    """Gives every process rank 0's random state: torch, ``random``, CUDA, and NumPy where it is imported.

    Initial weights and random splits then agree, also in scripts that never set a seed. Rank 0 draws nothing.
    """
    states = None
    if context.rank == 0:
        states = random_state(), torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    states = broadcast_object(states, 0, flag_device())
    if context.rank != 0:
        state, of_gpu = states
        set_random_state(state)
        if torch.cuda.is_available() and of_gpu is not None:
            torch.cuda.set_rng_state(of_gpu)


def rank() -> int:
    """This process's number among all, from 0; 0 alone."""
    return context.rank


def local_rank() -> int:
    """This process's number among those of its machine, from 0; 0 alone."""
    return context.local_rank


def world_size() -> int:
    """The number of processes; 1 alone, before ``amp.init``, and without ``ddp=True``."""
    return context.world_size


def is_main_process() -> bool:
    """Whether this is the process that prints, logs and saves: rank 0.

    Before ``amp.init`` the launcher's environment tells: a script may open its log when it is imported.
    """
    return context.rank == 0 if context.initialised else announced_rank() == 0


def barrier() -> None:
    """Waits until every process has come here; does nothing alone."""
    if context.distributed:
        end_passes()
        dist.all_reduce(torch.zeros(1, device=flag_device()))


def flag_device(near: torch.device | None = None) -> torch.device:
    """A device on which a small tensor can be all-reduced, ``near`` if the process group serves it."""
    served = str(dist.get_backend_config()) if context.owns_group else dist.get_backend()
    if near is not None and near.type == "cuda" and ("nccl" in served or "gloo" in served):
        return near
    if "gloo" in served or "mpi" in served or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


@contextmanager
def main_process_first() -> Iterator[None]:
    """Lets rank 0 run the block first, then one process of each other machine, then the rest.

    For downloads and caches: the first process makes the file, the others find it. Does nothing alone. The
    block must not contain collective operations.
    """
    global _depth_of_main_process_first
    if not context.distributed or _depth_of_main_process_first:
        yield
        return
    phase = 0 if context.rank == 0 else 1 if context.local_rank == 0 else 2
    for _ in range(phase):
        barrier()
    _depth_of_main_process_first += 1
    try:
        yield
    finally:
        _depth_of_main_process_first -= 1
        for _ in range(2 - phase):
            barrier()


def inside_main_process_first() -> bool:
    """Whether this process is in a block where the processes take turns, so that no collective may run."""
    return _depth_of_main_process_first > 0


def from_all_processes(value: Any) -> list[Any]:
    """Every rank's picklable ``value``, by rank. A collective."""
    if not context.distributed:
        return [value]
    return all_objects(value, flag_device())


def from_main_process(value: T) -> T:
    """Rank 0's ``value`` on every rank; ``value`` itself alone. A collective: every rank must call it.

    For what each process has its own of and all must have the same: ``if amp.from_main_process(time.time() > end):``
    stops all processes in the same round.

    Args:
        value: anything that can be pickled.
    """
    if not context.distributed:
        return value
    sent: T = broadcast_object(value, 0, flag_device())
    return sent
