"""Many files on several cores: the same result, and files that crash or hang."""

from __future__ import annotations

import time

import pytest

MANY = {
    f"p{number % 5}/m{number}.py": f"fill(x, {number})\n" if number % 3 else "log(x)\nx = 1\n" for number in range(90)
}


@pytest.mark.parametrize("jobs", ["2", "3", "auto"])
def test_the_result_does_not_depend_on_the_number_of_processes(write, invoke, jobs):
    write({**MANY, "p1/bad.py": "x = (\n", "p2/boom.py": "BOOM\n", "z.ipynb": "{"})
    alone = invoke(".", "--no-cache", "--jobs", "1", "--format", "json")
    together = invoke(".", "--no-cache", "--jobs", jobs, "--format", "json")
    assert (together.stdout, together.stderr) == (alone.stdout, alone.stderr)
    assert together.exit_code == alone.exit_code == 2
    assert alone.stdout.count('"AMP60') == 90 + 2


def test_a_crash_costs_one_file(write, invoke):
    write({**MANY, "p3/crash.py": "CRASH\n", "p1/crash.py": "CRASH\n"})
    done = invoke(".", "--jobs", "2", "--format", "concise")
    assert done.exit_code == 2
    assert done.stdout.count("\n") == 90
    assert [line for line in done.stderr.splitlines() if line.startswith("error")] == [
        "error: p1/crash.py: the analysis crashed; skipped",
        "error: p3/crash.py: the analysis crashed; skipped",
    ]


def test_a_file_that_takes_too_long_is_skipped(write, invoke):
    write({**MANY, "p3/slow.py": "SLOW\n"})
    for jobs in ("1", "2"):
        done = invoke(".", "--jobs", jobs, "--timeout", "0.3", "--no-cache", "--format", "concise")
        assert done.stdout.count("\n") == 90
        assert "error: p3/slow.py: analysis took longer than 0.3 s; skipped (--timeout allows more)" in done.stderr


def test_a_process_that_hears_no_alarm_is_killed(write, invoke, monkeypatch):
    monkeypatch.setattr("amp_migrate.run.workers._GRACE", 0.3)
    write({**MANY, "p3/hang.py": "HANG\n"})
    done = invoke(".", "--jobs", "2", "--timeout", "0.3", "--format", "concise")
    assert done.stdout.count("\n") == 90
    assert "error: p3/hang.py: analysis took longer than 0.3 s; skipped" in done.stderr


def test_a_bound_of_zero_is_none(write, invoke, monkeypatch):
    monkeypatch.setattr("signal.setitimer", None)
    write(a="fill(x, 1)\n")
    assert invoke("a.py", "--timeout", "0").exit_code == 1


def test_a_swallowed_alarm_comes_again(monkeypatch):
    from amp_migrate.run import timelimit

    monkeypatch.setattr(timelimit, "_AGAIN", 0.05)
    heard = []
    with pytest.raises(timelimit.TookTooLongError), timelimit.time_limit(0.05):
        try:
            spin()
        except timelimit.TookTooLongError:
            heard.append("once")
        spin()
    assert heard == ["once"]


def test_an_error_on_the_way_out_of_the_alarm_is_the_alarm():
    from amp_migrate.run import timelimit

    known: dict[str, int] = {}
    with pytest.raises(timelimit.TookTooLongError), timelimit.time_limit(0.05):
        try:
            spin()
        finally:
            known["not yet"] += 1
    with pytest.raises(KeyError), timelimit.time_limit(5):
        known["never"] += 1


def test_waiting_counts_as_work():
    from amp_migrate.run import timelimit

    with pytest.raises(timelimit.TookTooLongError), timelimit.time_limit(0.1):
        time.sleep(5)


def spin():
    while True:
        pass


def test_an_interrupt_ends_the_run(write, folder):
    import signal
    import subprocess
    import sys

    from lint_standin import STANDIN_PATH

    write({**MANY, "p3/slow.py": "SLOW\n", "p4/slow.py": "SLOW\n"})
    command = [sys.executable, str(STANDIN_PATH), ".", "--jobs", "2", "--timeout", "60"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A shell starts its background jobs deaf to interrupts, and whatever they start as well.
    process = subprocess.Popen(
        command, cwd=folder, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler), **streams
    )
    # However busy the machine: only once the work has begun.
    while not (folder / "slow.started").exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 130
    assert (output, errors) == ("", "interrupted\n")
