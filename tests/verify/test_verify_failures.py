"""What a process wrote to standard error is read for the line that failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_migrate.verify.copies import copy_project, project_of
from amp_migrate.verify.failures import Output, failure_of

TRACEBACK = """\
Traceback (most recent call last):
  File "{copy}/train.py", line 2, in <module>
    model(x)
RuntimeError: mat1 and mat2 shapes cannot be multiplied
"""


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_the_line_of_the_project_is_named_also_where_torch_puts_the_rank_before_it(prefix: str, tmp_path: Path) -> None:
    script = tmp_path / "project" / "train.py"
    script.parent.mkdir()
    script.write_text("import model\nmodel(x)\n")
    project, copy = project_of(script, script.parent), tmp_path / "copy"
    copy_project(project, copy, 2**20)
    lines = TRACEBACK.format(copy=copy).splitlines(keepends=True)
    failure = failure_of(Output("".join(prefix + line for line in lines), 1), project, copy, "python")
    assert failure.message == "RuntimeError: mat1 and mat2 shapes cannot be multiplied"
    assert (failure.path, failure.line, failure.text) == (script, 2, "model(x)")


@pytest.mark.parametrize(
    ("before", "line", "advice"), [("model(x)\n", 1, ""), ("x\n", 2, "; line 2 is one of the migrated file")]
)
def test_a_line_that_the_migration_wrote_is_said_to_be_the_migrated_file_s(
    before: str, line: int, advice: str, tmp_path: Path
) -> None:
    script = tmp_path / "project" / "train.py"
    script.parent.mkdir()
    script.write_text("import model\nmodel(x)\n")
    project, copy = project_of(script, script.parent), tmp_path / "copy"
    copy_project(project, copy, 2**20)
    output = Output(TRACEBACK.format(copy=copy), 1)
    failure = failure_of(output, project, copy, "python", lambda path: before)
    assert failure.message == f"RuntimeError: mat1 and mat2 shapes cannot be multiplied{advice}"
    assert failure.line == line


def test_an_end_without_a_traceback_is_told_by_what_was_written_last(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    project = project_of(script, tmp_path)
    long = "epoch 1 " + "x" * 3000
    failure = failure_of(Output(f"{long}\n", 3, "loss 1.5\ncaught ValueError\n"), project, tmp_path / "copy", "python")
    assert failure.message.startswith("it ended with status 3: epoch 1 xxx")
    assert failure.message.endswith("[...]; the last that it printed: caught ValueError")
    assert len(failure.message) < 500
