"""Ranks that wait for one that does not come, in real processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launching import Launcher, free_port

pytestmark = pytest.mark.heavy

BEGIN = """
import logging, os, sys, time
from pathlib import Path
from amp_runtime._noticing import waiting
import amp_runtime as amp, torch

waiting._INTERVAL, waiting._PATIENCE = 0.05, 3
told = Path(os.environ["CHECK_DIR"]) / "told"
logging.getLogger("amp_runtime").addHandler(logging.FileHandler(told))
amp.init("O0", ddp=True)

def all_known():
    return waiting._watcher is None or "not known" not in waiting._watcher.lines()
"""
WAITS = """
def long_evaluation():
    while not told.read_text():
        time.sleep(0.05)

if amp.rank() == 0:
    long_evaluation()
amp.barrier()
"""
LEAVES = """
def leave():
    while not all_known():
        time.sleep(0.05)
    time.sleep(0.2)
    os._exit(0)

if amp.rank() == 0:
    leave()
amp.barrier()
"""
ENDS = """
if amp.rank() == 0:
    sys.exit()
while waiting._watcher.lines()[0] != "its script has ended":
    time.sleep(0.05)
amp.barrier()
"""
STAYS = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
FAILS = """
if amp.rank() == 1:
    raise RuntimeError("one rank fails")
while True:
    time.sleep(0.05)
"""


def test_a_rank_that_waits_alone_says_where_all_are(launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGIN + WAITS)
    finished = launcher.together(script, tmp_path, 3)
    assert finished.returncode == 0, finished.stderr
    told = (tmp_path / "told").read_text()
    lines = (BEGIN + WAITS).splitlines()
    barrier = lines.index("amp.barrier()") + 1
    assert re.search(rf"rank 1, 2: train\.py:{barrier} at step 0", told), told
    assert re.search(r"rank 0: train\.py:\d+, in long_evaluation at step 0", told), told
    assert told.count("has been here for") <= 2, "one rank of each line says so, once"


def test_the_error_of_an_exchange_says_where_all_were(launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGIN + LEAVES)
    finished = launcher.together(script, tmp_path)
    assert finished.returncode == 1
    assert re.search(r"amp_runtime: The ranks are at: rank 0: train\.py:\d+, in leave", finished.stderr), (
        finished.stderr
    )
    finished = launcher.together(script, tmp_path, AMP_CHECK="off")
    assert finished.returncode == 1 and "The ranks are at" not in finished.stderr


def test_the_error_of_an_exchange_says_whose_script_has_ended(launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGIN + ENDS)
    finished = launcher.together(script, tmp_path)
    assert finished.returncode == 1
    assert "amp_runtime: The ranks are at: rank 0: its script has ended; rank 1: train.py:" in finished.stderr


def test_a_rank_that_failed_ends_those_that_no_launcher_ends(launcher: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(STAYS + BEGIN + FAILS)
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    finished = launcher.each(script, tmp_path, [{**place, "RANK": str(rank)} for rank in range(2)])
    assert finished.returncode == 1
    told = (tmp_path / "told").read_text()
    assert "rank 0 ends, since rank 1 failed with RuntimeError: one rank fails; it was at train.py:" in told
    assert "The ranks are at" not in finished.stderr, "which an error of the script's own does not tell"
