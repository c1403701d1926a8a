"""Starting a script alone or in several processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from warm import Ended, Start, Warm

# That nothing hangs is tested, and not how fast it is.
SECONDS = 240
LAUNCH = ("AMP_OPT_LEVEL", "RANK", "WORLD_SIZE", "LOCAL_RANK")

Finished = subprocess.CompletedProcess[str]


class Launcher:
    """Starts scripts in processes forked off one that has imported torch."""

    def __init__(self, warm: Warm) -> None:
        self._warm = warm

    def alone(self, script: Path, directory: Path, **environment: str) -> Finished:
        """What ``python SCRIPT`` does; it can read ``directory`` as CHECK_DIR."""
        return self.each(script, directory, [environment])

    def each(self, script: Path, directory: Path, environments: Sequence[dict[str, str]]) -> Finished:
        """What ``python SCRIPT`` does, started once for each environment by nobody who watches them."""
        logs = directory / "stdout", directory / "stderr"
        starts = [Start((str(script),), environment_of(directory) | own, *logs) for own in environments]
        return _finished(script, self._warm.run(starts, directory, seconds=SECONDS), logs)

    def together(self, script: Path, directory: Path, ranks: int = 2, **environment: str) -> Finished:
        """What ``torchrun --nproc-per-node RANKS SCRIPT`` does."""
        logs = directory / "stdout", directory / "stderr"
        env = environment_of(directory) | environment
        ended = self._warm.launch([str(script)], env, directory, [logs] * ranks, seconds=SECONDS)
        return _finished(script, ended, logs)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def torchrun(script: Path, directory: Path, *options: str, **environment: str) -> Finished:
    """Start two processes with the launcher itself."""
    port = str(free_port())
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port, *options]
    process = subprocess.Popen(
        [*command, str(script)],
        env=environment_of(directory) | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        stderr += f"\nended after {SECONDS} s"
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def environment_of(directory: Path) -> dict[str, str]:
    """The variables of a script that is started: without those of another launch."""
    kept = {key: value for key, value in os.environ.items() if key not in LAUNCH}
    return kept | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "CHECK_DIR": str(directory)}


def _finished(script: Path, ended: Ended, logs: tuple[Path, Path]) -> Finished:
    stdout, stderr = (path.read_text(encoding="utf-8") for path in logs)
    if not ended.in_time:
        stderr += f"\nended after {SECONDS} s"
    return subprocess.CompletedProcess([str(script)], ended.status, stdout, stderr)
