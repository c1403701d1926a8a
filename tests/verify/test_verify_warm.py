"""A script in a forked process finds what it finds in an interpreter of its own, and its end is told as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from amp_migrate.verify.environment import interpreter_environment, launched
from amp_migrate.verify.processes import Outcome, Rank, run_together
from amp_migrate.verify.warm import UnfitError, Warm, can_fork
from waiting import lives, wait_for

pytestmark = [
    pytest.mark.skipif(not can_fork(), reason="nothing is forked on this system"),
    pytest.mark.heavy,
]

PLENTY = 2**40
# What the interpreter itself looks at when it starts.
GIVEN = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}
STATE = """
import atexit, json, os, random, signal, sys, threading
import helper
print("to stderr", file=sys.stderr)
main = sys.modules["__main__"]
state = {
    "argv": sys.argv, "name": __name__, "folder": os.getcwd(), "input": sys.stdin.read(), "path": sys.path,
    "helper": helper.__file__, "environment": sorted(os.environ), "hash": hash("a"),
    "threads": len(os.listdir("/proc/self/task")), "package": __package__, "file": __file__,
    "spec": getattr(__spec__, "name", None), "main": main.__dict__ is globals(), "doc": __doc__,
    "loader": type(__loader__).__name__, "command": sys.orig_argv, "python": sys.executable,
    "signals": [str(signal.getsignal(number)) for number in (2, 15, 17)], "session": os.getsid(0) == os.getpid(),
    "encoding": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stderr.line_buffering],
    "files": sorted(int(number) for number in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + number)),
    "thread": threading.main_thread() is threading.current_thread(), "mask": str(signal.pthread_sigmask(0, ())),
}
print(json.dumps(state | {"random": random.random()}))
"""


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    with Warm(sys.executable, GIVEN, 2) as warm:
        yield warm


def ranks_of(folder: Path, *argvs: list[str], **environment: str) -> list[Rank]:
    return [
        Rank(
            (sys.executable, *argv),
            {**GIVEN, **environment},
            folder / f"out{number}",
            folder / f"err{number}",
        )
        for number, argv in enumerate(argvs)
    ]


def run(warm: Warm | None, *argvs: list[str], folder: Path, timeout: float = 240, **environment: str) -> Outcome:
    ranks = ranks_of(folder, *argvs, **environment)
    return run_together(ranks, folder, timeout=timeout, memory=PLENTY, starter=warm)


def said(folder: Path, number: int = 0) -> str:
    return (folder / f"out{number}").read_text()


@pytest.mark.parametrize("argv", [["train.py", "--lr", "1"], ["-m", "train", "--lr", "1"]], ids=["script", "module"])
@pytest.mark.parametrize("variables", [{}, {"WORLD_SIZE": "1"}], ids=["alone", "launched"])
def test_a_script_finds_what_it_finds_in_an_interpreter(
    argv: list[str], variables: dict[str, str], tmp_path: Path, warm: Warm
) -> None:
    (tmp_path / "train.py").write_text(STATE)
    (tmp_path / "helper.py").touch()
    environment = {"PYTHONHASHSEED": "1", "OWN": "1", "PYTHONPATH": "/nowhere:relative", **variables}
    assert run(None, argv, folder=tmp_path, **environment).statuses == (0,)
    expected = json.loads(said(tmp_path))
    assert run(warm, argv, argv, folder=tmp_path, **environment).statuses == (0, 0)
    first, second = (json.loads(said(tmp_path, number)) for number in range(2))
    assert (tmp_path / "err0").read_text() == "to stderr\n"
    assert first.pop("random") != second.pop("random") != expected.pop("random")
    assert first == second == expected


ENDS = {
    "": 0,
    "sys.exit(3)": 3,
    "sys.exit('said')": 1,
    "raise ValueError('raised')": 1,
    "os._exit(4)": 4,
    "os.kill(os.getpid(), 9)": -9,
    "1 +": 1,
    "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print('late'))).start()": 0,
    "kept = open('kept', 'w')\nkept.write('lines')": 0,
    "class Last:\n    def __del__(self): print('finalised')\nlast = Last()": 0,
    "sys.excepthook = lambda *rest: print('own hook', rest[0].__name__)\n1 / 0": 1,
}


@pytest.mark.parametrize("code", ENDS)
@pytest.mark.parametrize("variables", [{}, {"WORLD_SIZE": "1"}], ids=["alone", "launched"])
def test_an_end_is_that_of_an_interpreter(code: str, variables: dict[str, str], tmp_path: Path, warm: Warm) -> None:
    text = f"import atexit, os, sys\natexit.register(print, 'at exit')\nprint('begun', flush=True)\n{code}\n"
    (tmp_path / "train.py").write_text(text)
    found = []
    for how in (None, warm):
        outcome = run(how, [str(tmp_path / "train.py")], folder=tmp_path, **variables)
        kept = tmp_path / "kept"
        written = kept.read_text() if kept.exists() else None
        kept.unlink(missing_ok=True)
        found.append((outcome.statuses, outcome.how, said(tmp_path), (tmp_path / "err0").read_text(), written))
    assert found[0][0] == (ENDS[code],)
    assert found[0] == found[1]


def test_workers_of_loaders_and_spawned_processes_find_the_script(tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "train.py").write_text(
        "import multiprocessing, torch\n"
        "from torch.utils.data import DataLoader, Dataset\n"
        "class Own(Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, index): return index\n"
        "def work(queue): queue.put(type(Own()).__module__)\n"
        "if __name__ == '__main__':\n"
        "    for context in ('fork', 'spawn'):\n"
        "        loader = DataLoader(Own(), num_workers=1, multiprocessing_context=context)\n"
        "        print(context, [int(index) for index in loader])\n"
        "    spawning = multiprocessing.get_context('spawn')\n"
        "    queue = spawning.Queue()\n"
        "    process = spawning.Process(target=work, args=(queue,))\n"
        "    process.start(); print(queue.get()); process.join()\n"
    )
    assert run(warm, ["train.py"], folder=tmp_path).statuses == (0,), (tmp_path / "err0").read_text()
    assert said(tmp_path) == "fork [0, 1, 2, 3]\nspawn [0, 1, 2, 3]\n__mp_main__\n"


def test_two_ranks_have_two_hash_seeds(tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "train.py").write_text("import os\nprint(os.environ['RANK'], hash('a'))\n")
    ranks = [
        Rank((sys.executable, "train.py"), environment, tmp_path / f"out{number}", tmp_path / f"err{number}")
        for number, environment in enumerate(launched(interpreter_environment(1), 2, 1))
    ]
    forked = []
    for how in (None, warm):
        assert run_together(ranks, tmp_path, timeout=240, memory=PLENTY, starter=how).statuses == (0, 0)
        forked.append([said(tmp_path, number).split() for number in range(2)])
    (first, second), again = forked
    assert [first, second] == again and first[1] != second[1]


def test_a_module_of_the_script_with_the_name_of_another_is_found(tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "train.py").write_text("import sympy\nprint(sympy.own)\n")
    (tmp_path / "sympy.py").write_text("own = 1\n")
    with pytest.raises(UnfitError, match="sympy"):
        run(warm, ["train.py"], folder=tmp_path)
    (tmp_path / "sympy.py").rename(tmp_path / "mine.py")
    (tmp_path / "train.py").write_text("import mine\nprint(mine.own)\n")
    assert run(warm, ["train.py"], folder=tmp_path).statuses == (0,)


LEAVES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.environ.clear()
    open("pid", "a").write(f"{os.getpid()} ")
    time.sleep(500)
while not os.path.exists("pid"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize(("end", "how"), [("", "ended"), ("time.sleep(500)", "timeout")])
def test_what_it_has_started_ends_with_it(end: str, how: str, tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "train.py").write_text(LEAVES + end)
    assert run(warm, ["train.py"], folder=tmp_path, timeout=5).how == how
    left = list(map(int, (tmp_path / "pid").read_text().split()))
    assert left
    assert not any(map(lives, left))


def test_everything_ends_with_the_verification_even_if_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(500)\n")
    code = f"""
import sys
from pathlib import Path
from amp_migrate.verify.processes import Rank, run_together
from amp_migrate.verify.warm import Warm
folder = Path({str(tmp_path)!r})
with Warm(sys.executable, {GIVEN!r}) as warm:
    print(*warm.parents(), flush=True)
    rank = Rank((sys.executable, "train.py"), {GIVEN!r}, folder / "out", folder / "err")
    run_together([rank], folder, timeout=400, memory={PLENTY}, starter=warm)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    parent = int(process.stdout.readline())
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    process.kill()
    process.wait()
    script = int((tmp_path / "pid").read_text())
    wait_for(lambda: not lives(parent) and not lives(script))


def test_a_parent_that_is_gone_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with Warm(sys.executable, GIVEN) as warm:
        (parent,) = warm.parents()
        os.kill(parent, 9)
        with pytest.raises(UnfitError):
            run(warm, ["train.py"], folder=tmp_path)


def test_a_python_without_torch_is_unfit(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "torch.py").write_text("raise ImportError('not here')\n")
    with (
        Warm(sys.executable, {**GIVEN, "PYTHONPATH": str(tmp_path)}) as warm,
        pytest.raises(UnfitError, match="not here"),
    ):
        run(warm, ["train.py"], folder=tmp_path)
