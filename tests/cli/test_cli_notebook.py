"""Notebooks on the command line: what is rewritten in which cell, and that nothing else changes."""

from __future__ import annotations

import ast
import json
import os
import pty
import stat
import subprocess
import sys

import pytest
from amp_migrate.notebook.source import source_of
from amp_rules import migrate
from amp_rules.plan import declining
from amp_rules.plan.notebooks import MAGIC
from amp_rules.plan.options import Options
from amp_rules.source.notebook import cells_in
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from notebooks import notebook, sources, without_sources
from properties import examples

IMPORTS = "import torch\nimport torch.nn.functional as F\n%matplotlib inline"
IMPORTS_AFTER = """\
import torch
import torch.nn.functional as F
import amp_runtime as amp
%matplotlib inline

amp.init(opt_level="O1")"""
NET = "net = torch.nn.Linear(4, 1)\nnet"
NET_AFTER = "net = amp.prepare_model(torch.nn.Linear(4, 1))\nnet"
OPTIMIZER = "opt = torch.optim.SGD(net.parameters(), lr=0.1)"
OPTIMIZER_AFTER = "opt = amp.optim.SGD(net.parameters(), lr=0.1)"
LOOP = """\
# 训练
for x, y in batches:
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    opt.step()"""
LOOP_AFTER = """\
# 训练
for x, y in batches:
    opt.zero_grad()
    with amp.autocast():
        loss = F.mse_loss(net(x), y)
    amp.scaler.scale(loss).backward()
    amp.scaler.step(opt)
    amp.scaler.update()"""
BEFORE = [("markdown", "# Title"), "!pip install torch", IMPORTS, NET, OPTIMIZER, ("raw", "loss.backward()"), LOOP]
AFTER = ["# Title", "!pip install torch", IMPORTS_AFTER, NET_AFTER, OPTIMIZER_AFTER, "loss.backward()", LOOP_AFTER]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path.parent / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path.parent / "cache"))
    return tmp_path


@pytest.fixture
def invoke(folder):
    from amp_migrate.commands.migrate import main

    def call(*arguments, **kwargs):
        return CliRunner().invoke(main, [str(argument) for argument in arguments], **kwargs)

    return call


def migrated(data, tmp_path, **options):
    """The report and the new bytes of a notebook; its own where it does not change."""
    path = tmp_path / "n.ipynb"
    source = source_of(data, path)
    report = migrate(path, Options(**options), overrides={path: source})
    for change in report.changes:
        assert change.path == path
        ast.parse(change.after)
        return report, source.encode(change.after)
    return report, data


# ---- what is rewritten ---------------------------------------------------------------------------------------


def test_each_edit_is_made_in_its_cell_and_nothing_else_changes(folder, invoke):
    file = folder / "n.ipynb"
    before = notebook(*BEFORE)
    file.write_bytes(before)
    done = invoke("n.ipynb", "-w", "--allow-dirty")
    assert done.exit_code == 0, done.stderr
    after = file.read_bytes()
    assert sources(after) == AFTER
    assert without_sources(after, [3, 4, 5, 7]) == without_sources(before, [3, 4, 5, 7])
    kept = set(after.splitlines())
    gone = [line for line in before.splitlines() if line not in kept]
    assert all(line.startswith(b'    "') for line in gone)
    assert "nothing to change" in invoke("n.ipynb", "-w", "--allow-dirty").stderr
    assert file.read_bytes() == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            ["out = net(x)", "print(out)", "plot(out)\nloss = F.mse_loss(out, y)\nloss.backward()\nopt.step()"],
            [
                "with amp.autocast():\n    out = net(x)",
                "print(out)",
                "plot(out)\nwith amp.autocast():\n    loss = F.mse_loss(out, y)\n"
                "amp.scaler.scale(loss).backward()\namp.scaler.step(opt)\namp.scaler.update()",
            ],
            id="a region over several cells",
        ),
        pytest.param(
            [
                "for x in xs:\n  out = net(x)\n  !nvidia-smi \\\n     -L\n  loss = out.sum()\n"
                "  loss.backward()\n  opt.step()"
            ],
            [
                "for x in xs:\n  with amp.autocast():\n    out = net(x)\n    !nvidia-smi \\\n       -L\n"
                "    loss = out.sum()\n  amp.scaler.scale(loss).backward()\n  amp.scaler.step(opt)\n"
                "  amp.scaler.update()"
            ],
            id="a shell line within a region",
        ),
        pytest.param(
            [
                "def train(model, x):\n    loss = model(x).sum()\n    loss.backward()\n    opt.step()",
                "%time train(net, x)  # slow",
            ],
            [
                "def train(model, x):\n    with amp.autocast():\n        loss = model(x).sum()\n"
                "    amp.scaler.scale(loss).backward()\n    amp.scaler.step(opt)\n    amp.scaler.update()",
                "%time train(net, x)  # slow",
            ],
            id="a step that a magic runs",
        ),
        pytest.param(
            ["%%time\n# one step\nloss = net(x).sum()\n%time loss.backward()\nopt.step();"],
            [
                "%%time\n# one step\nwith amp.autocast():\n    loss = net(x).sum()\n"
                "%time amp.scaler.scale(loss).backward()\namp.scaler.step(opt);\namp.scaler.update()"
            ],
            id="the magic of a cell stays first",
        ),
        pytest.param(
            ["  loss = net(x).sum()\n\n  loss.backward()\n  opt.step()\n"],
            [
                "  with amp.autocast():\n      loss = net(x).sum()\n\n  amp.scaler.scale(loss).backward()\n"
                "  amp.scaler.step(opt)\n  amp.scaler.update()\n"
            ],
            id="a cell that is indented as a whole",
        ),
        pytest.param(
            ["%%bash\nloss.backward()", "loss = net(x).sum()\r\nloss.backward()\r\nopt.step()"],
            [
                "%%bash\nloss.backward()",
                "with amp.autocast():\r\n    loss = net(x).sum()\r\namp.scaler.scale(loss).backward()\r\n"
                "amp.scaler.step(opt)\r\namp.scaler.update()",
            ],
            id="other languages and line ends",
        ),
    ],
)
def test_cells_come_out_as_written_by_hand(before, after, tmp_path):
    head = [IMPORTS, NET, OPTIMIZER]
    report, result = migrated(notebook(*head, *before), tmp_path)
    assert (report.precision, report.refusals) == ("migrated", ())
    assert sources(result)[3:] == after
    again, same = migrated(result, tmp_path)
    assert (again.precision, same) == ("already", result)


def test_cells_share_the_indentation_of_the_notebook(tmp_path):
    cells = [IMPORTS, "def f(x):\n  return x", NET, OPTIMIZER, "loss = net(x).sum()\nloss.backward()\nopt.step()"]
    _, result = migrated(notebook(*cells), tmp_path)
    assert sources(result)[4].startswith("with amp.autocast():\n  loss = net(x).sum()\n")


@pytest.mark.parametrize(
    ("cells", "number", "expected"),
    [
        (["import os", "def f(): pass", "import torch", "x = 1"], 3, ["import torch", "{import}", "", "{init}"]),
        (["%%time\nx = 1", "import torch\nx = 2"], 2, ["import torch", "{import}", "", "{init}", "", "x = 2"]),
        (["# the setup\nimport torch\n\n# a seed\ntorch.manual_seed(1)"], 1,
         ["# the setup", "import torch", "{import}", "", "{init}", "", "# a seed", "torch.manual_seed(1)"]),
        (["import torch, argparse", "args = argparse.ArgumentParser().parse_args([])\nx = 1"], 2,
         ["args = argparse.ArgumentParser().parse_args([])", "{init}", "x = 1"]),
    ],
)  # fmt: skip
def test_the_runtime_starts_with_the_imports(cells, number, expected, tmp_path):
    step = "loss = net(x).sum()\nloss.backward()\nopt.step()"
    _, result = migrated(notebook(*cells, NET, OPTIMIZER, step), tmp_path)
    lines = "\n".join(expected).replace("{import}", "import amp_runtime as amp")
    assert sources(result)[number - 1] == lines.replace("{init}", 'amp.init(opt_level="O1")')


def test_modules_that_a_notebook_imports_are_migrated_with_it(folder, invoke):
    (folder / "steps.py").write_text("def step(loss, opt):\n    loss.backward()\n    opt.step()\n")
    call = "from steps import step\nloss = net(x).sum()\nstep(loss, opt)"
    (folder / "n.ipynb").write_bytes(notebook(IMPORTS, NET, OPTIMIZER, call))
    done = invoke("n.ipynb", "-w", "--allow-dirty")
    assert done.exit_code == 0, done.stderr
    assert "amp.scaler.scale(loss).backward()" in (folder / "steps.py").read_text()
    assert sources((folder / "n.ipynb").read_bytes())[0] == IMPORTS_AFTER


@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("as_list", [True, False])
def test_the_layout_of_the_file_is_kept(indent, ascii_only, as_list, tmp_path):
    document = json.loads(notebook(IMPORTS, NET, OPTIMIZER, LOOP))
    expected = json.loads(notebook(IMPORTS_AFTER, NET_AFTER, OPTIMIZER_AFTER, LOOP_AFTER))
    if not as_list:
        for cell in [*document["cells"], *expected["cells"]]:
            cell["source"] = "".join(cell["source"])
    before, after = (
        json.dumps(item, indent=indent, ensure_ascii=ascii_only).replace("zero_grad()", "zero_gr\\u0061d()").encode()
        for item in (document, expected)
    )
    _, result = migrated(before, tmp_path)
    assert result == after


def test_a_cell_still_shows_the_value_that_it_ends_with(tmp_path):
    shown = "torch.nn.functional.mse_loss(net(torch.zeros(1, 4)), torch.zeros(1, 1))"
    _, result = migrated(notebook(*BEFORE, shown, f"out = net(torch.zeros(1, 4))\n{shown}"), tmp_path)
    first, second = sources(result)[-2:]
    assert first == shown
    assert second.splitlines()[-1] == shown and "    out = net" in second


# ---- what is left alone --------------------------------------------------------------------------------------


def test_several_processes_do_not_apply_and_nothing_is_declined(folder, invoke):
    for name in ("n.ipynb", "o.ipynb"):
        (folder / name).write_bytes(notebook(*BEFORE))
    done = invoke("n.ipynb", "o.ipynb", "--ddp", "--format", "json")
    document = json.loads(done.stdout)
    assert {(entry["precision"], entry["distribution"]) for entry in document["entries"]} == {
        ("migrated", "not applicable")
    }
    assert document["refusals"] == []
    assert "ddp=True" not in done.stdout
    assert done.stderr.count("distribution not applicable") == 2
    assert done.stderr.count("jupyter nbconvert --to script") == 1
    assert invoke("n.ipynb", "o.ipynb", "--ddp", "-w", "--allow-dirty").exit_code == 0
    again = invoke("n.ipynb", "o.ipynb", "--ddp", "--check")
    assert again.exit_code == 0 and "distribution not applicable" in again.stderr


def test_a_notebook_without_a_step_is_absent_with_ddp_too(tmp_path):
    report, _ = migrated(notebook("import torch\nprint(torch.ones(1))"), tmp_path, ddp=True)
    assert (report.precision, report.distribution) == ("absent", "absent")


def test_a_magic_that_would_be_taken_apart_is_a_reason(tmp_path):
    report, result = migrated(notebook(*BEFORE[:5], "net(x).sum().backward()", "x\n\n%time opt.step(); x"), tmp_path)
    assert (report.precision, report.changes, report.edits) == ("declined", (), ())
    (reason,) = report.refusals
    assert (reason.code, reason.cell, reason.span.start.line) == (MAGIC.code, 7, 3)
    assert sources(result)[6] == "x\n\n%time opt.step(); x"


def test_a_magic_around_one_step_stays_around_it(tmp_path):
    report, result = migrated(notebook(*BEFORE[:5], "net(x).sum().backward()", "x\n\n%time opt.step()"), tmp_path)
    assert report.precision == "migrated"
    assert sources(result)[6] == "x\n\n%time amp.scaler.step(opt)\namp.scaler.update()"


def test_the_code_of_notebooks_is_their_own():
    assert MAGIC.code not in {rule.code for rule in declining.ALL}


def test_reasons_and_edits_name_the_cell_and_the_line_in_it(folder, invoke):
    closure = "def closure():\n    loss = net(x).sum()\n    loss.backward()\n    return loss\n\nopt.step(closure)"
    (folder / "n.ipynb").write_bytes(notebook(*BEFORE[:5], closure))
    done = invoke("n.ipynb")
    assert "n.ipynb:cell 6:6: AMP191" in done.stderr
    (folder / "n.ipynb").write_bytes(notebook(*BEFORE))
    assert "n.ipynb:cell 7:5:5: AMP103 scaled-backward" in invoke("n.ipynb", "-v").stderr
    edits = json.loads(invoke("n.ipynb", "--format", "json").stdout)["edits"]
    assert [(item["cell"], item["start"]["line"]) for item in edits if item["code"] == "AMP103"] == [(7, 5)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xef\xbb\xbf" + notebook(LOOP), "n.ipynb:1: begins with a byte order mark"),
        (notebook(LOOP).decode().encode("utf-16"), "is not UTF-8, as notebooks are"),
        (b'{"nbformat": 3, "worksheets": [], "metadata": {}}', "is a notebook of an old format; `jupyter nbconvert"),
        (notebook("x <- 1", metadata={"kernelspec": {"language": "R"}}), "is a notebook of r, not of Python"),
        (notebook(("markdown", "x"), "x = 1\ny = ("), "n.ipynb:cell 2:2:5: syntax error: '(' was never closed"),
        (notebook("x = 1\n\nprint x"), "n.ipynb:cell 1:3: Python 2: convert with 2to3 first"),
        (b"{", "is not a notebook"),
    ],
)
def test_what_cannot_be_taken_is_told_and_left_as_it_was(data, message, folder, invoke):
    (folder / "n.ipynb").write_bytes(data)
    (folder / "good.ipynb").write_bytes(notebook(*BEFORE))
    done = invoke("n.ipynb", "good.ipynb", "-w", "--allow-dirty")
    assert done.exit_code == 2
    assert message in done.stderr
    assert (folder / "n.ipynb").read_bytes() == data
    assert sources((folder / "good.ipynb").read_bytes()) == AFTER


def test_folders_are_searched_without_checkpoints_and_other_kernels(folder, invoke):
    for name in ("a/n.ipynb", "a/.ipynb_checkpoints/n-checkpoint.ipynb", "r.ipynb"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(notebook(*BEFORE))
    (folder / "r.ipynb").write_bytes(notebook("x <- 1", metadata={"kernelspec": {"language": "R"}}))
    done = invoke(".", "--check")
    assert done.exit_code == 1, done.stderr
    assert [line for line in done.stderr.splitlines() if "would change" in line] == ["would change a/n.ipynb"]
    assert "error" not in done.stderr


# ---- what is shown and written -------------------------------------------------------------------------------


def test_the_diff_applies_with_git_beside_that_of_a_script(folder, invoke):
    (folder / "n.ipynb").write_bytes(notebook(*BEFORE))
    script = "\n".join([IMPORTS.replace("%", "# %"), NET, OPTIMIZER, LOOP, ""])
    (folder / "train.py").write_text(script)
    done = invoke(".")
    assert done.exit_code == 0
    subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], input=done.stdout_bytes, cwd=folder, check=True)
    assert sources((folder / "n.ipynb").read_bytes()) == AFTER
    assert "amp.init" in (folder / "train.py").read_text()


CELL_DIFF = """\
--- a/n.ipynb:cell 4
+++ b/n.ipynb:cell 4
@@ -1,2 +1,2 @@
-net = torch.nn.Linear(4, 1)
+net = amp.prepare_model(torch.nn.Linear(4, 1))
 net
--- a/n.ipynb:cell 5
"""


def test_people_see_the_diff_cell_by_cell(folder, invoke):
    (folder / "n.ipynb").write_bytes(notebook(*BEFORE))
    done = invoke("n.ipynb", "--format", "cells")
    assert CELL_DIFF in done.stdout and "diff --git" not in done.stdout
    (file,) = json.loads(invoke("n.ipynb", "--format", "json").stdout)["files"]
    assert [item["cell"] for item in file["cells"]] == [3, 4, 5, 7]
    assert "".join(item["diff"] for item in file["cells"]) == done.stdout
    assert file["diff"] == invoke("n.ipynb").stdout
    assert file["diff"].startswith("diff --git a/n.ipynb b/n.ipynb\n")


def test_a_terminal_shows_cells(folder):
    (folder / "n.ipynb").write_bytes(notebook(*BEFORE))
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb"}
    command = [sys.executable, "-m", "amp_migrate", "n.ipynb", "-q"]
    subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, cwd=folder, env=environment, check=True, timeout=120)
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    assert CELL_DIFF in shown.decode().replace("\r\n", "\n")


def _read(handle):
    try:
        return os.read(handle, 65536)
    except OSError:
        return b""


def test_written_notebooks_keep_their_permissions(folder, invoke):
    file = folder / "n.ipynb"
    file.write_bytes(notebook(*BEFORE))
    file.chmod(0o640)
    done = invoke("n.ipynb", "-w", "--allow-dirty")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert "`%env AMP_OPT_LEVEL=O0` in a first cell of n.ipynb" in done.stderr
    assert list(folder.iterdir()) == [file]


def test_notebooks_can_be_written_elsewhere(folder, invoke):
    before = notebook(*BEFORE)
    (folder / "n.ipynb").write_bytes(before)
    assert invoke("n.ipynb", "-o", "new.ipynb").exit_code == 0
    assert sources((folder / "new.ipynb").read_bytes()) == AFTER
    assert invoke("n.ipynb", "-o", "out").exit_code == 0
    assert (folder / "out" / "n.ipynb").read_bytes() == (folder / "new.ipynb").read_bytes()
    assert sources(invoke("n.ipynb", "-o", "-").stdout_bytes) == AFTER
    done = invoke("n.ipynb", "-o", "new.py")
    assert done.exit_code == 2 and "a notebook stays a notebook" in done.stderr
    assert (folder / "n.ipynb").read_bytes() == before


def test_a_notebook_comes_from_standard_input(folder, invoke):
    done = invoke("-", "--stdin-filename", "n.ipynb", "-o", "-", input=notebook(*BEFORE))
    assert done.exit_code == 0, done.stderr
    assert sources(done.stdout_bytes) == AFTER
    unchanged = notebook("x = 1")
    assert invoke("-", "--stdin-filename", "n.ipynb", "-o", "-", input=unchanged).stdout_bytes == unchanged


# ---- any notebook --------------------------------------------------------------------------------------------

STATEMENTS = [
    "import torch",
    "from torch import nn",
    "net = nn.Linear(4, 1)",
    "criterion = nn.MSELoss()",
    "opt = torch.optim.SGD(net.parameters(), lr=0.1)",
    "def train(x, y):\n    out = net(x)\n    !nvidia-smi\n    loss = criterion(out, y)\n"
    "    loss.backward()\n    opt.step()",
    "x, y = torch.ones(2, 4), torch.ones(2, 1)",
    "%time train(x, y)",
    "# one step by hand",
    "out = net(x)",
    "print('é', out.shape)",
    "loss = criterion(out, y)  # 损失",
    "loss.backward()",
    "opt.step()",
    "!ls",
    "opt.zero_grad()",
    "print(net(x))",
]


@settings(deadline=None, max_examples=examples(40))
@given(
    st.lists(st.booleans(), min_size=len(STATEMENTS), max_size=len(STATEMENTS)),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.booleans(),
)
def test_wherever_cells_begin_the_result_is_whole(tmp_path_factory, begins, indent, ended, commented):
    cells = [""]
    for statement, begin in zip(STATEMENTS, begins, strict=True):
        if begin:
            cells[-1] = cells[-1] if ended else cells[-1].removesuffix("\n")
            cells += [("markdown", "loss.backward()"), "# a comment\n\n" if commented else ""]
        cells[-1] += statement + "\n"
    before = notebook(*cells, indent=indent)
    folder = tmp_path_factory.getbasetemp()
    report, after = migrated(before, folder)
    assert (report.precision, report.refusals) == ("migrated", ())
    old, new = sources(before), sources(after)
    changed = [number for number, (one, two) in enumerate(zip(old, new, strict=True), start=1) if one != two]
    assert without_sources(after, changed) == without_sources(before, changed)
    assert {edit.cell for edit in report.edits} <= set(changed)
    text = "\n".join(source for source, cell in zip(new, cells, strict=True) if not isinstance(cell, tuple))
    # The parts that are asked of the runtime do not depend on where cells begin.
    for part, count in [("import amp_runtime", 1), ("amp.init(", 1), ("prepare_model(", 1), (".scale(loss)", 2)]:
        assert text.count(part) == count
    assert text.count("%time train(x, y)") == text.count("    !nvidia-smi") == text.count("\n!ls\n") == 1
    again, same = migrated(after, folder)
    assert (again.precision, same) == ("already", after)
    assert len(cells_in(source_of(after, folder / "n.ipynb").text)) == sum(isinstance(cell, str) for cell in cells)


# ---- a line that installs the runtime ------------------------------------------------------------------------


def test_the_first_cell_installs_the_runtime_on_request(folder, invoke):
    file = folder / "n.ipynb"
    file.write_bytes(notebook(*BEFORE))
    options = ("n.ipynb", "--install-line", "amp-runtime")
    shown = invoke(*options, "--format", "cells").stdout
    assert "+%pip install -q amp-runtime\n" in shown
    assert invoke(*options, "-w", "--allow-dirty").exit_code == 0
    assert sources(file.read_bytes()) == [AFTER[0], f"%pip install -q amp-runtime\n{AFTER[1]}", *AFTER[2:]]
    written = file.read_bytes()
    assert "nothing to change" in invoke(*options, "-w", "--allow-dirty").stderr
    assert file.read_bytes() == written
    invoke("--undo", "n.ipynb")
    assert file.read_bytes() == notebook(*BEFORE)


def test_a_magic_of_the_whole_cell_keeps_the_first_line(folder, invoke):
    cells = ["%%bash\nls", "%%time\nimport os", *BEFORE]
    (folder / "n.ipynb").write_bytes(notebook(*cells))
    invoke("n.ipynb", "--install-line", "./wheels/amp runtime.whl", "-w", "--allow-dirty")
    found = sources((folder / "n.ipynb").read_bytes())
    assert found[:2] == cells[:2]
    assert [text for text in found if "%pip" in text] == [f"%pip install -q './wheels/amp runtime.whl'\n{AFTER[1]}"]


def test_where_nothing_uses_the_runtime_nothing_is_installed(folder, invoke):
    (folder / "n.ipynb").write_bytes(notebook(*BEFORE))
    (folder / "train.py").write_text("import torch\n")
    shown = invoke("n.ipynb", "train.py", "--install-line", "amp-runtime", "--target", "torch").stdout
    assert "GradScaler" in shown and "%pip" not in shown


def test_the_line_may_be_that_of_the_own_installation(folder, invoke):
    (folder / "n.ipynb").write_bytes(notebook(*BEFORE))
    assert "%pip install -q " in invoke("n.ipynb", "--install-line", "auto").stdout
