"""``python -m amp_runtime.apex.parallel.multiproc train.py ...``: one process for each GPU.

As in Apex, every process gets ``--world-size N --rank i`` behind its arguments, and those of rank 1 and up write their
output to ``GPU_i.log``. They also find torchrun's environment. ``--world-size N`` among the arguments sets the number.
New scripts should use torchrun.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import IO

import torch


def main(arguments: list[str]) -> None:
    """Starts the processes and waits for them; ends the others when one fails.

    Args:
        arguments: the script and its arguments.

    Raises:
        SystemExit: no script was given, or a process failed; with its exit status.
    """
    if not arguments:
        raise SystemExit("usage: python -m amp_runtime.apex.parallel.multiproc script.py [arguments]")
    size = _world_size(arguments)
    if "--world-size" not in arguments:
        arguments = [*arguments, "--world-size", str(size)]
    with ExitStack() as files:
        workers = []
        for rank in range(size):
            output: IO[str] | None = None if rank == 0 else files.enter_context(open(f"GPU_{rank}.log", "w"))
            command = [sys.executable, *arguments, "--rank", str(rank)]
            workers.append(subprocess.Popen(command, stdout=output, env=os.environ | _environment(rank, size)))
        status = _wait(workers)
    if status:
        raise SystemExit(status)


def _world_size(arguments: list[str]) -> int:
    if "--world-size" in arguments:
        return int(arguments[arguments.index("--world-size") + 1])
    return max(torch.cuda.device_count(), 1)


def _environment(rank: int, size: int) -> dict[str, str]:
    port = os.environ.get("MASTER_PORT") or _ports.setdefault("port", _free_port())
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    number = str(rank)
    return {
        "RANK": number,
        "LOCAL_RANK": number,
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }


_ports: dict[str, str] = {}  # one free port for all processes; each would find another


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _wait(workers: list[subprocess.Popen[bytes]]) -> int:
    """The first status that is not 0; a failed process would leave the others waiting for it."""
    running = list(workers)
    while running:
        for worker in list(running):
            try:
                status = worker.wait(timeout=0.2)  # then the next one is looked at: any of them may fail first
            except subprocess.TimeoutExpired:
                continue
            running.remove(worker)
            if status:
                for other in running:
                    other.terminate()
                for other in running:
                    other.wait()
                return status
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
