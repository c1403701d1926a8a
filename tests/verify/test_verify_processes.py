"""Processes are bounded, and none of them outlives its run, whatever it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest
from amp_migrate.verify.processes import Outcome, Rank, interruptible, run_together
from waiting import wait_for

pytestmark = [
    pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks into /proc"),
    pytest.mark.heavy,
]

PLENTY = 2**40
SLEEPS = 500
"""Seconds that the scripts here would go on for if nobody ended them."""


def run(folder: Path, *codes: str, timeout: float = 240, memory: int = PLENTY) -> Outcome:
    ranks = [
        Rank((sys.executable, "-c", dedent(code)), dict(os.environ), folder / f"out{number}", folder / f"err{number}")
        for number, code in enumerate(codes)
    ]
    return run_together(ranks, folder, timeout=timeout, memory=memory)


def alive(word: str) -> list[int]:
    """Processes, zombies among them, that have a word in their command line or are children of this one."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if word.encode() in command or (parent == os.getpid() and not command):
            found.append(int(pid))
    return found


def test_each_has_its_output_its_place_and_no_input(tmp_path: Path) -> None:
    outcome = run(tmp_path, "import os, sys; print(os.getcwd(), repr(sys.stdin.read()))", "import sys; sys.exit('no')")
    assert outcome.statuses == (0, 1) and outcome.how == "ended"
    assert (tmp_path / "out0").read_text() == f"{tmp_path} ''\n"
    assert (tmp_path / "err1").read_text() == "no\n"


def test_the_time_is_bounded_for_grandchildren_that_have_left_too(tmp_path: Path) -> None:
    code = """
    import subprocess, sys, time
    sleeper = "import time; time.sleep(500)  # sleeper-of-this-test"
    subprocess.Popen([sys.executable, "-c", sleeper])
    # Out of the session, and, when its parent ends, out of the family.
    leave = f"import os; os.setsid(); os.fork() and os._exit(0); os.setsid(); exec({sleeper!r})"
    subprocess.Popen([sys.executable, "-c", leave]).wait()
    print("started", flush=True)
    time.sleep(500)
    """
    for timeout in (3, 12, 48):
        outcome = run(tmp_path, code, timeout=timeout)
        assert outcome.how == "timeout" and outcome.statuses == (None,)
        assert timeout <= outcome.seconds < SLEEPS
        # On a busy machine it may take longer than that to start.
        if (tmp_path / "out0").read_text():
            break
    assert (tmp_path / "out0").read_text() == "started\n"
    assert alive("sleeper-of-this-test") == []


def test_what_a_script_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    code = """
    import subprocess, sys
    sleeper = "import time; time.sleep(500)  # left-by-this-test"
    subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True)
    """
    assert run(tmp_path, code).statuses == (0,)
    assert alive("left-by-this-test") == []


def test_the_memory_of_all_together_is_bounded(tmp_path: Path) -> None:
    code = """
    import os, time
    os.fork()
    kept = bytearray(os.urandom(1)) * 150_000_000
    time.sleep(500)
    """
    outcome = run(tmp_path, code, memory=250_000_000)
    assert outcome.how == "memory" and outcome.seconds < SLEEPS
    assert run(tmp_path, code.replace("500", "1.5"), memory=500_000_000).how == "ended"


def test_one_that_fails_ends_the_others(tmp_path: Path) -> None:
    outcome = run(tmp_path, "import time; time.sleep(500)", "raise ValueError('mine')")
    assert outcome.statuses == (None, 1) and outcome.order == (1,)
    assert outcome.seconds < SLEEPS


def test_the_others_may_say_why_they_fail_too(tmp_path: Path) -> None:
    outcome = run(tmp_path, "import time; time.sleep(1); raise OSError('connection')", "raise ValueError('mine')")
    assert outcome.statuses == (1, 1) and outcome.order == (1, 0)


def test_a_command_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    ranks = [
        Rank((name, "-c", "import time; time.sleep(500)  # beside-nothing"), {}, tmp_path / "out", tmp_path / "err")
        for name in (sys.executable, str(tmp_path / "nothing"))
    ]
    with pytest.raises(FileNotFoundError):
        run_together(ranks, tmp_path, timeout=240, memory=PLENTY)
    assert alive("beside-nothing") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_ends_everything(number: int, tmp_path: Path) -> None:
    code = f"""
    import sys
    from pathlib import Path
    from amp_migrate.verify.processes import Rank, interruptible, run_together
    folder = Path({str(tmp_path)!r})
    sleeper = "import os, time; os.fork(); print('up', flush=True); time.sleep(500)  # interrupted-{number}"
    ranks = [Rank((sys.executable, "-c", sleeper), {{}}, folder / "out", folder / "err")]
    try:
        with interruptible():
            run_together(ranks, folder, timeout=240, memory={PLENTY})
    except KeyboardInterrupt:
        print("interrupted")
    """
    command = [sys.executable, "-c", dedent(code)]
    # A shell starts its background jobs deaf to interrupts, and whatever they start as well.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=_hear_interrupts)
    wait_for(lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_text().count("up") == 2)
    process.send_signal(number)
    assert process.communicate(timeout=240)[0] == "interrupted\n"
    assert alive(f"interrupted-{number}") == []


def test_signals_are_handled_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert signal.getsignal(signal.SIGTERM) is before


def _hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_what_goes_on_no_more_is_ended(tmp_path: Path) -> None:
    rank = Rank((sys.executable, "-c", "import time; time.sleep(500)"), {}, tmp_path / "out", tmp_path / "err")
    seen: list[float] = []

    def is_stuck(seconds: float) -> bool:
        seen.append(seconds)
        return seconds > 0.5

    outcome = run_together([rank], tmp_path, timeout=240, memory=PLENTY, is_stuck=is_stuck)
    assert (outcome.how, outcome.statuses) == ("stuck", (None,))
    assert seen == sorted(seen) and outcome.seconds < SLEEPS
