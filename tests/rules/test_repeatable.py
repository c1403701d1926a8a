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


FULL_CELL = """
import sys
from pathlib import Path
from amp_rules.roles.program import Program
from amp_rules.source.project import Project

held = [object() for _ in range(int(sys.argv[2]))]  # what comes after lies elsewhere in memory
flow = Program(Project(Path(sys.argv[1]))).flow
for (_, name), cell in flow.cells.items():
    if name in ("made", "found", "option"):
        print(name, [f"{value.kind} {value.ref!r}" for value in cell.values])
"""


def test_what_fits_into_a_full_cell_does_not_depend_on_memory(tmp_path):
    # More classes, functions and texts than a cell holds, in tables that are asked by a name made at run time.
    names = [f"Net{number}" for number in range(70)]
    lines = ["import argparse", "import torch"]
    for name in names:
        lines += [f"class {name}(torch.nn.Module):", "    pass", f"def make_{name.lower()}():", f"    return {name}()"]
    lines += ["NETS = {" + ", ".join(f"'{name}': {name}" for name in names) + "}"]
    lines += ["MAKERS = [" + ", ".join(f"make_{name.lower()}" for name in names) + "]"]
    lines += ["OPTIONS = [" + ", ".join(repr(name) for name in names) + "]"]
    lines += [
        "def main(name, index):",
        "    found = NETS[name]",
        "    made = MAKERS[index]()",
        "    option = OPTIONS[index]",
    ]
    lines += ["main(input(), 3)"]
    script = tmp_path / "train.py"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    outputs = []
    for seed, held in (("0", "1"), ("1", "3000"), ("2", "77777")):
        done = subprocess.run(
            [sys.executable, "-c", FULL_CELL, str(script), held],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.splitlines())
    assert len(outputs[0]) >= 3
    assert all(output == outputs[0] for output in outputs)
