"""Scripts for NVIDIA Apex, from the command line to the words about them."""

from __future__ import annotations

import pytest
from amp_migrate.commands.migrate import main
from click.testing import CliRunner

SCRIPT = """\
import torch
from apex import amp
from torch import nn

model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
for step in range(3):
    loss = model(torch.ones(4, 2)).mean()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
"""
PASSED_ON = SCRIPT + "print(amp)\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(text, *arguments):
        (tmp_path / "train.py").write_text(text)
        return CliRunner().invoke(main, ["train.py", *arguments])

    return call


def test_the_idiom_keeps_the_level_of_the_script_and_says_so(run):
    done = run(SCRIPT, "--opt-level", "O1")
    assert done.exit_code == 0
    assert '+amp.init(opt_level="O2")' in done.stdout and "+    amp.scaler.scale(loss).backward()" in done.stdout
    assert "the level stays the script's own" in done.stderr


def test_the_imports_alone_change_on_request(run):
    done = run(SCRIPT, "--apex", "compat")
    changed = [line for line in done.stdout.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ["-from apex import amp", "+from amp_runtime.apex import amp"]


def test_what_is_not_understood_is_told_with_its_place(run):
    done = run(PASSED_ON)
    assert "+from amp_runtime.apex import amp" in done.stdout
    assert "Apex's interface stays, from the runtime, because train.py:13: `amp`" in done.stderr


def test_the_idiom_or_nothing(run):
    done = run(PASSED_ON, "--apex", "idiom")
    assert done.stdout == "" and "precision declined" in done.stderr
    assert "train.py:13: AMP490 apex-not-understood" in done.stderr and "--apex compat" in done.stderr


def test_a_part_that_the_runtime_does_not_have_is_declined(run):
    done = run(SCRIPT.replace("from apex import amp", "from apex import amp, pyprof"), "--apex", "compat")
    assert done.stdout == "" and "the runtime has no `apex.pyprof`" in done.stderr


def test_an_import_that_stays_behind_its_try_is_told(run):
    guarded = "try:\n    from apex.transformer import parallel_state\nexcept ImportError:\n    parallel_state = None\n"
    done = run(guarded + SCRIPT, "--apex", "compat")
    assert "amp_runtime.apex.transformer" not in done.stdout and "+from amp_runtime.apex import amp" in done.stdout
    assert "train.py:2: AMP480 apex-interface-kept: `from apex.transformer import parallel_state` stays" in done.stderr


def test_the_mode_can_be_set_in_pyproject(run, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.amp-migrate]\napex = "compat"\n')
    assert "+from amp_runtime.apex import amp" in run(SCRIPT).stdout
    (tmp_path / "pyproject.toml").write_text('[tool.amp-migrate]\napex = "yes"\n')
    done = run(SCRIPT)
    assert done.exit_code == 2 and '"auto", "idiom", "compat"' in done.stderr


def test_old_names_of_torch_are_brought_up_to_date_and_the_scaler_stays(run):
    native = SCRIPT.replace("from apex import amp", "from torch.cuda.amp import GradScaler")
    native = native.replace(
        'model, optimizer = amp.initialize(model, optimizer, opt_level="O2")', "scaler = GradScaler()"
    )
    native = native.replace(
        "    with amp.scale_loss(loss, optimizer) as scaled_loss:\n        scaled_loss.backward()\n",
        "    scaler.scale(loss).backward()\n",
    )
    done = run(native)
    assert '+scaler = GradScaler("cuda")' in done.stdout and "amp_runtime" not in done.stdout
    assert "precision already" in done.stderr and "git apply" in done.stderr
    assert run(native, "--check").exit_code == 1
