"""--target torch on the command line: settings, a second run, later wishes, undo, notebooks, standard input."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from click.testing import CliRunner

HEAD = "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader, TensorDataset\n"
BODY = """
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
"""
TRAIN = f"{HEAD}\n\ndef main():{BODY}\n\nif __name__ == '__main__':\n    main()\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    (tmp_path / "work").mkdir()
    (tmp_path / "work/train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def invoke(*arguments, **kwargs):
    from amp_migrate.commands.migrate import main

    return CliRunner().invoke(main, ["-j", "1", *map(str, arguments)], **kwargs)


# ---- what cannot go together -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("--vendor",), "Take --no-vendor, or --target runtime"),
        (("--opt-level", "O2"), "Take --opt-level O1, or --target runtime"),
        (("--opt-level", "O3"), "Take --opt-level O1, or --target runtime"),
        (("--apex", "compat"), "Take --apex idiom or auto, or --target runtime"),
    ],
)
def test_what_torch_cannot_do_is_refused_with_what_to_do(folder, arguments, wanted):
    done = invoke("train.py", "--target", "torch", *arguments)
    assert done.exit_code == 2 and wanted in done.stderr and not done.stdout
    assert invoke("train.py", *arguments).exit_code == 0


def test_the_settings_of_the_project_count_for_it_too(folder):
    (folder / "pyproject.toml").write_text('[tool.amp-migrate]\ntarget = "torch"\n')
    done = invoke("train.py")
    assert done.exit_code == 0 and "torch.autocast(" in done.stdout and "amp_runtime" not in done.stdout
    assert "amp_runtime" in invoke("train.py", "--target", "runtime").stdout
    (folder / "pyproject.toml").write_text('[tool.amp-migrate]\ntarget = "torch"\nvendor = true\n')
    done = invoke("train.py")
    assert done.exit_code == 2 and "--no-vendor" in done.stderr
    assert invoke("train.py", "--no-vendor").exit_code == 0


def test_a_rewrite_that_only_the_runtime_has_is_named(folder):
    assert (
        "AMP410 has no effect with --target torch"
        in invoke("train.py", "--target", "torch", "--select", "AMP410").stderr
    )
    assert "AMP410 has no effect" not in invoke("train.py", "--select", "AMP410").stderr


@pytest.mark.parametrize("more", [("--no-fused",), ("--ignore", "AMP301")])
def test_what_is_left_out_is_left_out(folder, more):
    assert "fused=" in invoke("train.py", "--target", "torch").stdout
    assert "fused=" not in invoke("train.py", "--target", "torch", *more).stdout


def test_half_type_and_scale_are_fixed_where_they_are_given(folder):
    done = invoke("train.py", "--target", "torch", "--dtype", "fp16", "--loss-scale", "128").stdout
    assert "AMP_DTYPE = torch.float16\n" in done and "128" in done
    done = invoke("train.py", "--target", "torch", "--dtype", "bf16").stdout
    assert "torch.bfloat16" in done and "GradScaler" not in done


# ---- what is told ------------------------------------------------------------------------------------------------


def test_nothing_that_is_told_speaks_of_the_runtime(folder):
    done = invoke("train.py", "--target", "torch", "-w", "-v", "--report", folder / "report.md")
    assert done.exit_code == 0, done.output
    for text in (done.stderr, (folder / "report.md").read_text()):
        assert "amp_runtime" not in text and "amp-runtime" not in text and "the runtime" not in text.lower()
    assert "next: compare with full precision: AMP_OPT_LEVEL=O0 python train.py" in done.stderr
    assert "plain PyTorch" in (folder / "report.md").read_text()
    assert "AMP103" in done.stderr and "AMP108" not in done.stderr  # nothing of a prepared model is in the diff


def test_no_scaling_is_told_where_there_is_none(folder):
    done = invoke("train.py", "--target", "torch", "--dtype", "bf16", "-v")
    assert "AMP103" not in done.stderr and "AMP102" in done.stderr, done.stderr


def test_results_of_the_other_target_are_not_remembered(folder):
    first = invoke("train.py", "--target", "torch").stdout
    assert first != invoke("train.py").stdout
    assert first == invoke("train.py", "--target", "torch").stdout


# ---- again, and later --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [(), ("--ddp",)])
@pytest.mark.parametrize("target", ["torch", "runtime"])
def test_a_second_run_changes_nothing(folder, more, target):
    assert invoke("train.py", "--target", "torch", "-w", *more).exit_code == 0
    text = (folder / "train.py").read_text()
    done = invoke("train.py", "--target", target, "--check", *more)
    assert done.exit_code == 0, done.stderr
    distribution = "already" if more else "not requested"
    assert f"precision already, distribution {distribution}" in done.stderr and "nothing to change" in done.stderr
    assert (folder / "train.py").read_text() == text


@pytest.mark.parametrize("target", ["torch", "runtime"])
def test_several_processes_can_come_later(folder, target):
    assert invoke("train.py", "--target", "torch", "-w").exit_code == 0
    before = (folder / "train.py").read_text()
    assert invoke("train.py", "--target", target, "--ddp", "--check").exit_code == 1
    done = invoke("train.py", "--target", target, "--ddp", "-w")
    assert "precision already, distribution migrated" in done.stderr
    text = (folder / "train.py").read_text()
    assert ("amp_runtime" in text) is (target == "runtime")
    # The script's own scaler and regions stay, and are the only ones.
    assert [text.count(word) for word in ("GradScaler(", "torch.autocast(", "scaler.update()")] == [1, 1, 1]
    assert before.count("GradScaler(") == 1
    done = invoke("train.py", "--target", target, "--ddp", "--check")
    assert done.exit_code == 0, done.stderr


def test_undo_puts_the_script_back(folder):
    invoke("train.py", "--target", "torch", "-w")
    assert (folder / "train.py").read_text() != TRAIN
    assert invoke("--undo").exit_code == 0
    assert (folder / "train.py").read_text() == TRAIN


def test_standard_input_is_migrated(folder):
    done = invoke("-", "--target", "torch", "-w", input=TRAIN)
    assert done.exit_code == 0 and "torch.amp.GradScaler(" in done.stdout and "amp_runtime" not in done.stdout


# ---- notebooks ---------------------------------------------------------------------------------------------------


def notebook(*cells):
    found = [
        {"cell_type": "code", "execution_count": None, "id": str(number), "metadata": {}, "outputs": [], "source": text}
        for number, text in enumerate(cells)
    ]
    about = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": found, "metadata": about, "nbformat": 4, "nbformat_minor": 5})


CELLS = (
    "%matplotlib inline\nprint('hello')",
    HEAD,
    "\n".join(row[4:] for row in BODY.splitlines()[1:6]),
    "\n".join(row[4:] for row in BODY.splitlines()[6:]),
)


def sources(path):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


def test_a_notebook_gets_its_constants_in_the_cell_of_its_imports(folder):
    path = folder / "train.ipynb"
    path.write_text(notebook(*CELLS))
    done = invoke("train.ipynb", "--target", "torch", "-w")
    assert done.exit_code == 0, done.stderr
    first, head, made, loop = sources(path)
    *rows, scaler = made.splitlines()
    assert first == CELLS[0] and "\n".join(rows).partition(", fused=")[0] == CELLS[2].removesuffix(")")
    assert scaler.startswith("scaler = torch.amp.GradScaler(")
    assert "USE_AMP = " in head and "GradScaler(" not in head and "torch.autocast(" in loop
    assert invoke("train.ipynb", "--target", "torch", "--check").exit_code == 0
    assert "where it trains" not in done.stderr


def test_a_notebook_on_the_runtime_becomes_one_on_torch_alone(folder):
    at_once, later = folder / "once.ipynb", folder / "later.ipynb"
    for path in (at_once, later):
        path.write_text(notebook(*CELLS))
    invoke("once.ipynb", "--target", "torch", "-w")
    invoke("later.ipynb", "-w")
    assert any("amp_runtime" in text for text in sources(later))
    done = invoke("later.ipynb", "--target", "torch", "-w", "--allow-dirty")
    assert "precision migrated" in done.stderr, done.stderr
    assert sources(later) == sources(at_once)


def test_git_applies_the_diff(folder):
    patch = invoke("train.py", "--target", "torch", "--ddp").stdout
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    done = subprocess.run(command, input=patch.encode(), capture_output=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert invoke("train.py", "--target", "torch", "--ddp", "--check").exit_code == 0


def test_a_script_for_apex_whose_processes_join_before_its_level_is_known(folder):
    (folder / "finetune.py").write_text(
        "import argparse\n\nfrom apex import amp\n"
        + HEAD
        + "\nparser = argparse.ArgumentParser()\nparser.add_argument('--opt-level', default='O1')\n"
        "args = parser.parse_args()\n"
        "data = TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))\n"
        "loader = DataLoader(data, batch_size=8, shuffle=True)\n"
        "model = nn.Linear(8, 3)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level)\n"
        "for x, y in loader:\n    loss = nn.functional.cross_entropy(model(x), y)\n    optimizer.zero_grad()\n"
        "    with amp.scale_loss(loss, optimizer) as scaled_loss:\n        scaled_loss.backward()\n"
        "    optimizer.step()\n"
    )
    done = invoke("finetune.py", "--target", "torch", "--ddp", "-w")
    assert "precision migrated, distribution migrated" in done.stderr, done.stderr
    text = (folder / "finetune.py").read_text()
    for word in ("init_process_group(", "GradScaler(", "DistributedSampler(", "destroy_process_group("):
        assert text.count(word) == 1, text
    assert text.index("init_process_group(") < text.index("DistributedSampler(") < text.index("GradScaler(")
    assert invoke("finetune.py", "--target", "torch", "--ddp", "--check").exit_code == 0


def test_reasons_speak_of_the_file_as_it_is(folder):
    second = "            nn.functional.mse_loss(model(x)[:, :1], x[:, :1]).backward()\n"
    twice = TRAIN.replace("            optimizer.step()\n", second + "            optimizer.step()\n")
    (folder / "train.py").write_text(twice)
    done = invoke("train.py", "--target", "torch", "--ddp")
    for number in (int(word.split(")")[0]) for word in done.stderr.split("(line ")[1:]):
        assert ".backward(" in twice.splitlines()[number - 1], done.stderr
    assert "amp.scaler" not in done.stderr
