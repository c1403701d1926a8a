"""The process that runs are forked off: it imports torch once, and never computes anything.

Each line of standard input is a request as a JSON object, and is answered with a line of JSON on standard output:

- ``{"run": [job, ...]}``: the process numbers; and later, as each of them ends, its number and status. A job has
  ``argv`` (a script, or ``-m`` and a module, and arguments), ``environment`` (all of it), ``cwd``, ``logs`` (files for
  stdout and stderr) and ``seconds`` (after which it ends itself).
- ``{"host": true}``: the port and the process number of a store in which ranks meet.
- ``{"end": pid}``: that store has ended.

A process that has threads cannot be forked safely: there is one thread for everything (OMP_NUM_THREADS=1), and no
backward pass, which would start those of autograd.
"""

import atexit
import json
import os
import random
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn


def main() -> None:
    _import_what_takes_long()
    # What other systems have in place of /proc is not looked at.
    tasks = Path("/proc/self/task")
    assert not tasks.exists() or len(list(tasks.iterdir())) == 1, "a process with threads cannot be forked"
    for line in sys.stdin:
        request = json.loads(line)
        if "run" in request:
            _run(request["run"])
        elif "host" in request:
            _answer(_host())
        else:
            os.kill(request["end"], signal.SIGKILL)
            _answer(os.waitpid(request["end"], 0))
    # Nothing is left to do, and to tear torch down takes a second.
    os._exit(0)


def _import_what_takes_long() -> None:
    import numpy  # noqa: F401

    # Imported by the first optimizer: it brings the compiler, which takes a second.
    import torch._dynamo
    import torch.distributed  # noqa: F401


def _answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


def _run(jobs: list[dict[str, Any]]) -> None:
    pids = [_fork(job) for job in jobs]
    _answer(pids)
    for _ in pids:
        pid = 0
        # A store may end in between; nobody asked for that.
        while pid not in pids:
            pid, status = os.wait()
        _answer([pid, os.waitstatus_to_exitcode(status)])


def _host() -> tuple[int, int]:
    """Fork a process that hosts a store, as torchrun's agent does: it has threads, which this one must not have."""
    from torch.distributed import TCPStore

    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        # Kept: a store ends with the object.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writing, str(store.port).encode())
        os.close(writing)
        _sleep_beside(os.getppid())
    os.close(writing)
    with open(reading, encoding="ascii") as file:
        return int(file.read()), pid


def _sleep_beside(parent: int) -> NoReturn:
    import time

    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


def _fork(job: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _become(job)
    return pid


def _become(job: dict[str, Any]) -> NoReturn:
    """Be the interpreter that runs this one script, from its start to its exit."""
    # What it starts can be ended with it.
    os.setsid()
    signal.alarm(job["seconds"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(job["logs"], 1):
        # Several ranks add to one file.
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["cwd"])
    _forget_the_parent()
    status = 0
    try:
        _run_script(job["argv"])
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    _exit(status)


def _forget_the_parent() -> None:
    """Take a state of one's own where every interpreter has one that nobody else has."""
    import numpy

    random.seed()
    numpy.random.seed()
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))


def _run_script(argv: list[str]) -> None:
    is_module = argv[0] == "-m"
    # A script's own folder is where its imports begin, and a module's the working folder.
    first = os.getcwd() if is_module else str(Path(argv[0]).absolute().parent)
    sys.path[:1] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if os.environ.get("AMP_VERIFY_RECORD"):
        # As the recorder's sitecustomize does when an interpreter starts.
        import amp_verify_recorder

        amp_verify_recorder.start()
    elif "WORLD_SIZE" in os.environ:
        _part_after_a_moment()
    sys.argv = argv[is_module:]
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def _part_after_a_moment() -> None:
    """Keep ranks from a deadlock that torch may come to on a busy CPU: ``verify``'s ``parting.py`` tells of it."""
    import torch.distributed as dist

    destroy = dist.destroy_process_group

    def destroyed(*args: Any, **kwargs: Any) -> None:
        time.sleep(0.25)
        destroy(*args, **kwargs)

    dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = destroyed


def _exit(status: int) -> NoReturn:
    """End as an interpreter does, but for tearing down every module of torch, which takes longer than most scripts."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)


if __name__ == "__main__":
    main()
