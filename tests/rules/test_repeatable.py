"""The same files give the same result, whatever order sets happen to have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MIGRATE_ALL = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from migrating import cases, declined_scripts, migrated
for case in cases():
    report, result = migrated(Path({folder!r}), case.before, case.options)
    for name, data in sorted(result.items()):
        print(case, name, repr(data))
    for item in (*report.edits, *report.refusals):
        print(case, item.code, item.span, item.message)
for path in declined_scripts():
    if path.is_file():
        report, _ = migrated(Path({folder!r}), {{"train.py": path.read_bytes()}}, cases()[0].options)
        for item in (*report.edits, *report.refusals):
            print(path, item.code, item.span, item.message)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("seeds", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_results_do_not_depend_on_the_hash_seed(seeds, tmp_path):
    running = []
    for seed in range(seeds):
        code = MIGRATE_ALL.format(here=str(Path(__file__).parent), folder=str(tmp_path / str(seed) / "project"))
        running.append(
            subprocess.Popen(
                [sys.executable, "-c", code],
                env={**os.environ, "PYTHONHASHSEED": str(seed)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=900) for process in running]
    assert [process.returncode for process in running] == [0] * seeds, outputs[0][1]
    lines = [output.splitlines() for output, _ in outputs]
    assert lines[0]
    differing = {row.split(" ")[0] for other in lines[1:] for row in set(lines[0]) ^ set(other)}
    assert differing == set()
    assert lines[1:] == lines[:1] * (seeds - 1)
