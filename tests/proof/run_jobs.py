"""Runs scripts one after the other, each in a process forked off this one: torch is imported only once.

Each line of stdin is a job as a JSON object: ``folder`` (working directory), ``argv`` (the script, or ``-m`` and a
module, and its arguments), ``env`` (more environment variables), ``packages`` (folders to import from besides),
``log`` (a folder for the files stdout and stderr) and ``seconds`` (the time limit). The answer is a line with the
exit status.
"""

import atexit
import json
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import amp_verify_recorder
import numpy
import torch._dynamo

# Imported for the children's sake; the first optimizer would import the compiler, which takes a second.
PRELOADED = (numpy, torch._dynamo)


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            become(job)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def become(job: dict) -> NoReturn:
    """Be the interpreter that runs this one script, from its start to its exit."""
    signal.alarm(job["seconds"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(Path(job["log"], name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    os.environ.update(job["env"])
    os.chdir(job["folder"])
    sys.argv = job["argv"]
    sys.path[0:1] = [job["folder"], *job["packages"]]
    amp_verify_recorder.start()
    status = 0
    try:
        if job["argv"][0] == "-m":
            sys.argv = job["argv"][1:]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            # A script's own folder is where its imports begin.
            sys.path[0] = str(Path(job["folder"], job["argv"][0]).parent)
            runpy.run_path(job["argv"][0], run_name="__main__")
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # Tearing down every module of torch takes longer than most of these scripts.
    os._exit(status)


if __name__ == "__main__":
    main()
