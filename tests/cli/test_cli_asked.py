"""--select and --ignore on the command line and in the configuration."""

from __future__ import annotations

import json

import pytest
from cli_standin import TRAIN

SCRIPT = """\
import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def real(folder, monkeypatch):
    """The analysis itself, not its stand-in."""
    from amp_rules.plan.migration import migrate

    monkeypatch.setattr("amp_rules.migrate", migrate, raising=False)
    (folder / "train.py").write_text(SCRIPT)
    return folder


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("AMP15", "AMP115"),
        ("fused-optimiser", "did you mean fused-optimizer"),
        ("AMP601", "that is a rule of amp-lint"),
        ("AMP999", "did you mean AMP"),
        ("everything", "codes begin with AMP1, "),
        ("AMP199", "no rewrite is called 'AMP199'"),
    ],
)
@pytest.mark.parametrize("option", ["--select", "--ignore"])
def test_what_is_no_rewrite_is_an_error_with_what_is_near(option, word, hint, folder, invoke):
    (folder / "train.py").write_text(TRAIN)
    done = invoke("train.py", option, word)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {option}: no rewrite is called '{word}'; ") and hint in done.stderr


def test_an_unknown_code_in_the_configuration_names_its_place(folder, invoke):
    (folder / "train.py").write_text(TRAIN)
    (folder / "pyproject.toml").write_text('[tool.amp-migrate]\nignore = ["AMP15"]\n')
    done = invoke("train.py")
    assert done.exit_code == 2 and "[tool.amp-migrate] ignore: no rewrite is called 'AMP15'" in done.stderr


@pytest.mark.parametrize(
    "words", [["AMP3"], ["amp301"], ["fused-optimizer"], ["AMP301,AMP2"], ["AMP2", "--ignore", "AMP3"]]
)
def test_codes_names_and_beginnings_leave_a_rewrite_out(words, real, invoke):
    done = invoke("train.py", "--ignore", *words)
    assert done.exit_code == 0
    assert "AMP104" in done.stderr and "AMP301" not in done.stderr
    assert "amp.optim" not in done.stdout


def test_the_command_line_takes_the_place_of_the_configuration(real, invoke):
    (real / "pyproject.toml").write_text('[tool.amp-migrate]\nignore = ["AMP3"]\n')
    assert "amp.optim" not in invoke("train.py").stdout
    assert "amp.optim" in invoke("train.py", "--ignore", "AMP2").stdout


def test_switches_of_which_nothing_is_left_are_told(real, invoke):
    done = invoke("train.py", "--ddp", "--ignore", "AMP2")
    assert "note: --ddp has no effect: --ignore leaves all of its rewrites out (AMP2)" in done.stderr
    done = invoke("train.py", "--modernize", "--select", "AMP1")
    assert "note: --modernize has no effect: --select names none of its rewrites (AMP5)" in done.stderr
    assert "has no effect" not in invoke("train.py", "--ddp", "--ignore", "AMP205").stderr
    done = invoke("train.py", "--shard-eval")
    assert "note: --shard-eval has no effect without --ddp" in done.stderr
    assert "has no effect" not in invoke("train.py", "--ddp", "--shard-eval").stderr


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("--select AMP301", "no rewrite of AMP1, AMP4 and AMP5 is selected, and AMP2 needs --ddp"),
        ("--select AMP2", "no rewrite of AMP1, AMP4 and AMP5 is selected, and AMP2 needs --ddp"),
        ("--select AMP1 --ignore AMP1 --ddp", "no rewrite of AMP1, AMP2, AMP4 and AMP5 is selected"),
        ("--ignore AMP1,AMP2,AMP4", "no rewrite of AMP1, AMP4 and AMP5 is selected, and AMP2 needs --ddp"),
    ],
)
def test_a_choice_that_leaves_nothing_to_do_is_told(words, note, real, invoke):
    done = invoke(".", *words.split())
    assert f"note: nothing is left to do: {note}\n" in done.stderr
    assert "1 training script in 1 file" in done.stderr


@pytest.mark.parametrize("words", ["--select AMP5", "--select AMP103", "--ignore AMP1", "--ignore AMP3"])
def test_a_choice_that_leaves_something_to_do_is_not(words, real, invoke):
    assert "nothing is left to do" not in invoke("train.py", *words.split()).stderr


def test_what_an_old_script_needs_to_be_read_is_told(real, invoke):
    (real / "train.py").write_text(SCRIPT + "x = model.cuda(async=True)\n")
    done = invoke("train.py")
    assert done.exit_code == 2 and "syntax error: invalid syntax; --modernize replaces `async=`\n" in done.stderr
    assert "error: " not in invoke("train.py", "--modernize").stderr


APEX_SCRIPT = """
import torch
from apex import amp
from torch import nn

model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
for _ in range(3):
    x = torch.ones(2, 4).cuda(async=True)
    optimizer.zero_grad()
    loss = model(x).sum()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
"""


def test_a_script_of_apex_that_no_longer_parses_is_brought_up_to_date(real, invoke):
    (real / "train.py").write_text(APEX_SCRIPT)
    done = invoke("train.py")
    assert done.exit_code == 0 and "AMP482 apex-script-modernized" in done.stderr
    assert "+    x = torch.ones(2, 4).cuda(non_blocking=True)" in done.stdout and "apex" not in plus(done.stdout)
    assert invoke("train.py", "--no-modernize").exit_code == 2


def plus(diff):
    return "".join(line for line in diff.splitlines() if line.startswith("+"))


def test_a_reason_that_scripts_share_is_told_once_and_pointed_to(real, invoke):
    (real / "step.py").write_text("def step(loss):\n    loss.backward()  # amp: skip\n")
    for name in ("a.py", "b.py"):
        (real / name).write_text("from step import step\n" + SCRIPT.replace("loss.backward()", "step(loss)"))
    told = invoke("a.py", "b.py").stderr
    assert told.count("step.py:2: AMP199 step-kept-as-it-is: ") == 1
    assert "b.py: precision skipped" in told and "  step.py:2: AMP199 step-kept-as-it-is, as above\n" in told


def test_a_part_of_a_step_alone_is_declined_and_nothing_written(real, invoke):
    done = invoke("train.py", "--select", "AMP103", "--allow-dirty", "-w")
    assert "AMP199 step-kept-as-it-is" in done.stderr and "nothing to change" in done.stderr
    assert (real / "train.py").read_text() == SCRIPT


def test_a_comment_that_leaves_nothing_out_is_a_note(real, invoke):
    (real / "train.py").write_text(SCRIPT.replace("import torch\n", "import torch  # amp: skip\n", 1))
    assert "  note: train.py:1: AMP182 idle-skip-comment: `# amp: skip` leaves nothing out" in invoke("train.py").stderr


def test_comments_hold_in_notebooks_by_cell(real, invoke):
    import json

    cells = [SCRIPT.partition("for _")[0], "for _" + SCRIPT.partition("for _")[2]]
    cells[0] = cells[0].replace("lr=0.1)", "lr=0.1)  # amp: skip[AMP301]")

    def write(*sources: str) -> None:
        document = {
            "cells": [
                {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": text}
                for text in sources
            ],
            "metadata": {"kernelspec": {"language": "python", "name": "python3", "display_name": "x"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (real / "train.ipynb").write_text(json.dumps(document, indent=1))

    write(*cells)
    done = invoke("train.ipynb")
    assert "AMP104" in done.stderr and "AMP301" not in done.stderr
    write(cells[0], cells[1].replace("zero_grad()", "zero_grad()  # amp: skip"))
    assert (
        "train.ipynb:cell 2:3: AMP182 idle-skip-comment: `# amp: skip` leaves nothing out"
        in invoke("train.ipynb").stderr
    )
    write(cells[0], cells[1].replace("optimizer.step()", "optimizer.step()  # amp: skip"))
    assert "train.ipynb:cell 2:5: AMP199" in invoke("train.ipynb").stderr


def test_of_many_reasons_the_first_are_shown_and_the_others_are_counted(real, invoke):
    hooks = "".join(f"model.weight.register_hook(lambda grad: grad.clamp(max={number}))\n" for number in range(2, 10))
    step = "loss = model(torch.ones(2, 4)).sum()\nloss.backward()\noptimizer.step()\n"
    made = "model = torch.nn.Linear(4, 1)\noptimizer = torch.optim.SGD(model.parameters())\n"
    (real / "train.py").write_text(f"import torch\n\n{made}{hooks}{step}")
    told = invoke("train.py").stderr
    assert told.count("AMP195 gradient-access") == 5
    assert "  and 3 more reasons (precision; -v shows them)\n" in told
    assert invoke("train.py", "-v").stderr.count("AMP195 gradient-access") == 8
    assert len(json.loads(invoke("train.py", "--format", "json").stdout)["refusals"]) == 8
