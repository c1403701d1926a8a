"""Runs of a verification in processes forked off one that has imported torch, which is what takes their time.

``Forked.run_together`` takes the place of :func:`amp_migrate.verify.processes.run_together`. The other half of this
file is the process that forks: each line of its standard input is a run as a JSON object.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from amp_migrate.verify.processes import Outcome, Rank


class Forked:
    """Makes runs, one after the other."""

    def __init__(self) -> None:
        self._parent: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End the process that forks."""
        if self._parent is not None:
            self._parent.communicate()

    def run_together(
        self,
        ranks: Sequence[Rank],
        cwd: Path,
        *,
        timeout: float,
        memory: int,
        tick: Callable[[float], None] = lambda seconds: None,
    ) -> Outcome:
        """Fork the processes and wait for them; the memory is not bounded."""
        if self._parent is None:
            self._parent = subprocess.Popen(
                [sys.executable, __file__],
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
            )
        jobs = [
            {
                "argv": list(rank.command[1:]),
                "environment": dict(rank.environment),
                "logs": [str(rank.stdout), str(rank.stderr)],
                "cwd": str(cwd),
                "timeout": timeout,
            }
            for rank in ranks
        ]
        began = time.monotonic()
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(jobs) + "\n")
        self._parent.stdin.flush()
        done = json.loads(self._parent.stdout.readline())
        statuses, order, pids = (tuple(done[name]) for name in ("statuses", "order", "pids"))
        return Outcome("ended", statuses, order, pids, time.monotonic() - began)


def _fork(job: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _become(job)
    return pid


def _become(job: dict[str, Any]) -> NoReturn:
    """Be the interpreter that runs this one script, from its start to its exit."""
    signal.alarm(int(job["timeout"]))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(job["logs"], 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["cwd"])
    sys.argv = job["argv"]
    sys.path[:1] = [str(Path(sys.argv[0]).parent), *os.environ["PYTHONPATH"].split(os.pathsep)]
    status = 0
    try:
        import amp_verify_recorder

        amp_verify_recorder.start()
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    import atexit

    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _serve() -> None:
    # For the children's sake; the first optimizer would import the compiler.
    import torch._dynamo
    import torch.distributed  # noqa: F401

    for line in sys.stdin:
        pids = [_fork(job) for job in json.loads(line)]
        statuses: dict[int, int | None] = {}
        while len(statuses) < len(pids):
            pid, status = os.wait()
            statuses[pid] = os.waitstatus_to_exitcode(status)
            if statuses[pid]:
                for other in set(pids) - set(statuses):
                    os.kill(other, signal.SIGTERM)
        order = [pids.index(pid) for pid in statuses]
        answer = {"statuses": [statuses[pid] for pid in pids], "order": order, "pids": pids}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
