"""The recorder knows what a script says and writes, and where."""

from __future__ import annotations

import os

import pytest
from amp_migrate.verify.printed import lines
from recording import HEAD, Record

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
]

BODY = """
import contextlib, io, sys

def log(message):
    print("log:", message)

class Tee:
    def __init__(self, stream):
        self.stream = stream
    def write(self, text):
        self.stream.write(text)
    def flush(self):
        self.stream.flush()

print("a", 1, end=" ")
print("b")
sys.stdout.write("c\\nd\\n")
with contextlib.redirect_stdout(io.StringIO()):
    print("not seen")
(model(torch.ones(1, 6)).sum()).backward()
log("e")
sys.stdout = Tee(sys.stdout)
print("f\\n\\ng", end="")
"""


def line_of(body: str, text: str) -> str:
    return f"train.py:{next(n for n, line in enumerate((HEAD + body).splitlines(), 1) if text in line)}"


def test_lines_are_known_with_the_place_that_prints_them(record: Record) -> None:
    run = record(BODY)
    said = [(one.text, one.site, one.before) for one in run.rank.said]
    assert run.stdout == "a 1 b\nc\nd\nlog: e\nf\n\ng"
    log, tee = line_of(BODY, 'print("log:"'), line_of(BODY, "self.stream.write(text)")
    called, last = line_of(BODY, 'log("e")'), line_of(BODY, 'print("f')
    assert said == [
        ("a 1 b", line_of(BODY, 'print("a"'), 0),
        ("c", line_of(BODY, 'write("c'), 0),
        ("d", line_of(BODY, 'write("c'), 0),
        ("log: e", f"{log}, {called}", 1),
        ("f", f"{tee}, {last}", 1),
        ("", f"{tee}, {last}", 1),
        ("g", f"{tee}, {last}", 1),
    ]
    assert not any(one.silent for one in run.rank.said)


TOGETHER = """
import os
from amp_runtime._distributed import output

rank = int(os.environ["RANK"])
output.silence(rank > 0)
loss = model(torch.ones(1, 6)).sum()
loss.backward()
print(f"rank {rank}", loss.detach() > 1e9, model)
print("loud", rank, force=True)
sys.stdout.write(f"written {rank}\\n")
print("an error", file=sys.stderr)
"""


def test_what_the_runtime_keeps_back_is_known(record: Record) -> None:
    first, second = record(TOGETHER, 2).ranks
    assert not any(one.silent for one in first.said)
    site = line_of(TOGETHER, 'print(f"rank')
    assert [(one.text, one.site, one.before, one.silent) for one in second.said] == [
        ("rank 1 tensor(False) Sequential", site, 1, True),
        ("loud 1", line_of(TOGETHER, 'print("loud'), 1, False),
        ("written 1", line_of(TOGETHER, "written {rank}"), 1, True),
    ]


APEX = """
from amp_runtime.apex import amp

model, optimizer = amp.initialize(model, optimizer, opt_level="O0")
print("Selected by the script")
model(torch.ones(1, 6)).sum().backward()
"""


def test_what_is_said_in_the_name_of_apex_is_no_line_of_the_script(record: Record) -> None:
    run = record(APEX)
    assert "Selected optimization level O0" in run.stdout
    assert [line.raw for line in lines(run.stdout, run.rank.said)] == ["Selected by the script"]


WRITES = """
import json, os, pathlib
import numpy

(model(torch.ones(1, 6)).sum()).backward()
pathlib.Path("out").mkdir()
torch.save(model.state_dict(), "out/model.pt")
numpy.save("out/array.npy", numpy.zeros(2))
with open("log.txt", "a") as file:
    file.write("x")
with open("new.json", "w") as file:
    json.dump({}, file)
os.replace("new.json", "facts.json")
open("train.py").close()
"""


def test_files_that_are_opened_for_writing_are_known(record: Record) -> None:
    opened = {one.name: (one.site, one.adds, one.before) for one in record(WRITES).rank.opened}
    assert opened == {
        "out/model.pt": (line_of(WRITES, "torch.save"), False, 1),
        "out/array.npy": (line_of(WRITES, "numpy.save"), False, 1),
        "log.txt": (line_of(WRITES, '"log.txt"'), True, 1),
        "new.json": (line_of(WRITES, '"new.json", "w"'), False, 1),
        "facts.json": (line_of(WRITES, "os.replace"), False, 1),
    }


TIMED = """
import time

(model(torch.ones(1, 6)).sum()).backward()
clocks = (time.time, time.perf_counter, time.monotonic, lambda: time.monotonic_ns() / 1e9)
before = [clock() for clock in clocks]
time.sleep(0.5)
print(*(clock() - start for clock, start in zip(clocks, before)))
"""


def test_a_faster_clock_shows_what_is_a_duration(record: Record) -> None:
    run = record(TIMED, clock=10)
    assert all(float(number) > 4.5 for number in run.stdout.split())
    # The record tells the real time.
    assert run.rank.backwards[0].time < 60


SILENT = """
import os

print("before")
if os.environ.get("RANK", "0") != "0":
    sys.stdout = open(os.devnull, "w")
other = open(os.devnull, "w")
print("of this rank")
print("not said", file=other)
(model(torch.ones(1, 6)).sum()).backward()
"""


@pytest.mark.parametrize("native", ["leveled", ""])
def test_what_a_rank_would_say_is_known_where_its_output_goes_nowhere(record: Record, native: str) -> None:
    run = record(SILENT, processes=2, native=native)
    first, second = ([(one.text, one.silent) for one in rank.said] for rank in run.ranks)
    assert first == [("before", False), ("of this rank", False)]
    assert second == [("before", False), *([("of this rank", True)] if native else [])]
