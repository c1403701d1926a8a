"""The benchmark of the runtime runs, and tells the faster from the slower."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script: str, *arguments: str, seconds: float = 100) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds)


@pytest.fixture
def timing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found = importlib.util.spec_from_file_location("benchmark_timing", BENCHMARKS / "timing.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "benchmark_timing", module)  # dataclasses look their module up
    found.loader.exec_module(module)
    return module


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="bytes are counted by Linux")
def test_bytes_and_memory_are_those_of_the_formula() -> None:
    finished = run(
        "cost_growth.py", "--processes", "2", "--levels", "O1", "--width", "32", "--depth", "3", "--steps", "2"
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    measured = finished.stdout.partition("## Measured")[2].partition("## Computed")[0]
    rows = [line.strip("|").split("|") for line in measured.splitlines() if line.startswith("| 2 ")]
    assert [row[1].strip() for row in rows] == ["replicated", "sharded"]
    for row in rows:
        sent, *held = ([float(number) for number in cell.split("/")] for cell in row[3:])
        # gloo sends the gradients of shards as those of whole models.
        assert sent[0] == pytest.approx(sent[1] * (4 / 3 if "sharded" in row[1] else 1), rel=0.1, abs=0.02)
        assert all(one == pytest.approx(other, rel=0.1, abs=0.02) for one, other in held)


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="bytes are counted by Linux")
def test_tables_that_are_shared_out_cost_each_rank_a_part_and_their_size_sends_nothing() -> None:
    finished = run(
        "embedding_growth.py", "--processes", "1", "2", "--tables", "65536", "262144", "--batch", "64", "--steps", "2",
        seconds=300,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    lines = [line for line in finished.stdout.splitlines() if re.match(r"\| [\d,]+ ", line)]
    cells = [[cell.strip().replace(",", "") for cell in line.strip("|").split("|")] for line in lines]
    traffic = [(float(row[3]), float(row[4])) for row in cells if row[1] == "8" and row[2] == "64"]
    assert traffic[0][0] == pytest.approx(traffic[1][0], rel=0.1)
    assert traffic[1][1] == pytest.approx(4 * traffic[0][1], rel=0.1)
    memory = [row for row in cells if row[1] in "12"]
    for rows, mib in (("65536", 2.0), ("262144", 8.0)):
        for row in memory:
            if row[0] == rows:
                part = mib / int(row[1]) if "shared out" in row[2] else mib
                assert float(row[3]) == pytest.approx(part, abs=0.01)


@pytest.mark.heavy
def test_it_prints_a_table_for_each_section_also_of_two_processes() -> None:
    finished = run("runtime.py", "--quick", "--only", "overhead", "syncbn")
    assert finished.returncode == 0, finished.stderr[-3000:]
    heading, overhead, syncbn = finished.stdout.split("\n## ")
    assert re.search(r"\d{4}-\d\d-\d\d, .+ cores", heading)
    assert "| unscale_, step, update: 160 tensors | torch GradScaler |" in overhead
    assert re.search(r"^\|  \| amp\.scaler \| [\d.]+ µs \|.+ \| x\d+\.\d\d \| x\d+\.\d\d \|$", overhead, re.MULTILINE)
    assert re.search(r"^- goal, .+ (met|MISSED)$", overhead, re.MULTILINE)
    assert "| two processes, 16x64x16x16 each |" in syncbn


@pytest.mark.heavy
def test_it_tells_what_a_level_holds() -> None:
    finished = run("runtime_memory.py", "O2", "cpu", "--quick")
    assert finished.returncode == 0, finished.stderr[-3000:]
    dense, _ = json.loads(finished.stdout)
    assert dense["masters"] == pytest.approx(2 * dense["weights"])
    assert dense["state"] == pytest.approx(4 * dense["weights"], rel=0.01)


def test_less_work_is_a_speed_above_1_and_what_goes_before_does_not_count(
    timing: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that only work moves: this holds on a machine that is busy with something else.
    now = 0.0

    def work(amount: int) -> None:
        nonlocal now
        now += amount * 1e-6

    def clock() -> float:
        return now

    monkeypatch.setattr(timing, "time", SimpleNamespace(process_time=clock, perf_counter=clock))
    contenders = [
        timing.Contender("much", lambda: work(40)),
        timing.Contender("little", lambda: work(4)),
        timing.Contender("little, after much", lambda: work(4), before=lambda: work(40)),
    ]
    compared = timing.compare("sums", contenders, timing.Effort(rounds=5, seconds=0.002))
    for name in ("little", "little, after much"):
        assert compared.speed(name) == pytest.approx((10.0, 10.0))
    assert [row.split(" | ")[1] for row in timing.table([compared]).splitlines()[2:]] == [c.name for c in contenders]
