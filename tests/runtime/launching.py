"""Starting a script with torchrun."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def launch(
    script: Path, directory: Path, ranks: int = 2, options: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(ranks),
        "--master-port",
        str(free_port()),
        *options,
    ]
    clean = {k: v for k, v in os.environ.items() if k not in ("AMP_OPT_LEVEL", "RANK", "WORLD_SIZE", "LOCAL_RANK")}
    process = subprocess.Popen(
        [*command, str(script)],
        env={
            **clean,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "CHECK_DIR": str(directory),
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        stderr += "\nended after 100 s"
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
