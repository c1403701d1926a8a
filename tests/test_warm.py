"""A script in a forked process finds what it finds in an interpreter of its own, and its end is told as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from warm import Ended, Start, Warm, launched

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
]

STATE = """
import json, os, random, sys
import helper
print("to stderr", file=sys.stderr)
state = {
    "argv": sys.argv, "name": __name__, "folder": os.getcwd(), "input": sys.stdin.read(), "path": sys.path[:2],
    "helper": helper.__file__, "environment": sorted(os.environ), "hash": hash("a"), "threads": len(os.listdir("/proc/self/task")),
}
print(json.dumps(state | {"random": random.random()}))
"""  # noqa: E501


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(STATE)
    (tmp_path / "helper.py").touch()
    return tmp_path / "train.py"


def run(warm: Warm, *argvs: list[str], folder: Path, seconds: float = 120, **environment: str) -> Ended:
    starts = [
        Start(
            tuple(argv), {"PATH": os.environ["PATH"], **environment}, folder / f"out{number}", folder / f"err{number}"
        )
        for number, argv in enumerate(argvs)
    ]
    return warm.run(starts, folder, seconds=seconds)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("argv", [["train.py", "--lr", "1"], ["-m", "train", "--lr", "1"]], ids=["script", "module"])
def test_a_script_finds_what_it_finds_in_an_interpreter(argv: list[str], script: Path, warm: Warm) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "1", "OWN": "1", "PYTHONPATH": "/nowhere"}
    alone = subprocess.run(
        [sys.executable, *argv],
        cwd=script.parent,
        env=environment,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    ended = run(warm, argv, argv, folder=script.parent, **environment)
    assert (ended.statuses, ended.in_time) == ((0, 0), True)
    expected = json.loads(alone.stdout)
    first, second = (json.loads((script.parent / f"out{number}").read_text()) for number in range(2))
    assert (script.parent / "err0").read_text() == "to stderr\n"
    assert first.pop("random") != second.pop("random") != expected.pop("random")
    # Where the interpreter's own locale adds one.
    expected["environment"] = [name for name in expected["environment"] if name != "LC_CTYPE"]
    assert Path(expected.pop("helper")).resolve() == Path(first.pop("helper")).resolve()
    second.pop("helper")
    assert first == second == expected


def test_ends_are_told_as_they_were(tmp_path: Path, warm: Warm) -> None:
    ends = {"": 0, "sys.exit(3)": 3, "sys.exit('said')": 1, "raise ValueError('raised')": 1, "os._exit(4)": 4}
    ends["os.kill(os.getpid(), 9)"] = -9
    for number, (code, status) in enumerate(ends.items()):
        (tmp_path / "train.py").write_text(
            f"import atexit, os, sys\natexit.register(print, 'at exit')\nprint('begun', flush=True)\n{code}\n"
        )
        ended = run(warm, ["train.py"], folder=tmp_path)
        assert (ended.statuses, ended.in_time) == ((status,), True), code
        lost = "os." in code
        assert (tmp_path / "out0").read_text() == ("begun\n" if lost else "begun\nat exit\n"), number
        error = (tmp_path / "err0").read_text()
        assert error.endswith({"sys.exit('said')": "said\n", "raise ValueError('raised')": "raised\n"}.get(code, ""))


def test_one_that_fails_ends_the_others(tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "waits.py").write_text("import time\nprint('waits', flush=True)\ntime.sleep(500)\n")
    (tmp_path / "fails.py").write_text("import sys\nsys.exit(3)\n")
    ended = run(warm, ["waits.py"], ["fails.py"], folder=tmp_path)
    assert (ended.statuses, ended.order, ended.in_time) == ((-15, 3), (1, 0), True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_what_hangs_is_ended_with_all_that_it_has_started(tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "hangs.py").write_text(
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\nopen('pid', 'a').write(f'{os.getpid()} ')\ntime.sleep(500)\n"
    )
    ended = run(warm, ["hangs.py"], folder=tmp_path, seconds=3)
    assert (ended.statuses, ended.in_time) == ((-9,), False)
    left = list(map(int, (tmp_path / "pid").read_text().split()))
    assert len(left) == 2
    deadline = time.monotonic() + 240
    while any(map(lives, left)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lives(pid: int) -> bool:
    try:
        # Whoever adopts it may not have reaped it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_environment_of_a_rank_is_that_of_torchrun(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import json, os\njson.dump(dict(os.environ), open(os.environ['RANK'] + '.json', 'w'))\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    subprocess.run([*command, "train.py"], cwd=tmp_path, check=True, capture_output=True, timeout=240)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        ours = launched(rank, 2, 1)
        own = {"OMP_NUM_THREADS", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "LINES", "COLUMNS"}
        set_by_it = set(found) - set(os.environ) - own
        assert set_by_it <= set(ours), "what it sets is set here"
        differing = {name for name in set(ours) & set(found) if ours[name] != found[name]}
        # Where the store is, the name of this launch, and what it leaves to chance.
        assert differing <= {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PYTHONHASHSEED"}
        assert set(ours) - set(found) <= {"PYTHONHASHSEED"}
