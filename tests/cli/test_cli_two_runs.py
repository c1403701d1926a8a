"""Two runs at once, in processes of their own: the second is stopped when all is planned and nothing is written yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from amp_migrate.run.deciding import Decided
from amp_migrate.run.decision_cache import DecisionCache
from amp_migrate.write.lock import locked
from amp_rules.plan.options import Options
from amp_rules.plan.report import Report
from amp_rules.source.digest import digest_of
from amp_rules.source.reach import Reach

pytestmark = pytest.mark.heavy

GATED = """\
import os, sys
from amp_migrate.commands.migrate import main
from amp_migrate.out import delivery

write = delivery.write_project

def gated(*arguments):
    sys.stdout.write("planned\\n")
    sys.stdout.flush()
    sys.stdin.readline()
    return write(*arguments)

delivery.write_project = gated
main(prog_name="amp-migrate")
"""
HELPER = "def make():\n    return 1e-3\n"
TRAIN = """\
import torch
from helper import make

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=make())
for x, y in torch.utils.data.DataLoader([(torch.zeros(4), 1)] * 8, batch_size=4):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


class Waiting:
    """A run that has planned everything and waits with its first file."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-c", GATED, *arguments, "-w"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "planned\n"

    def go_on(self):
        _, errors = self.process.communicate("\n", timeout=240)
        return self.process.returncode, errors


def run(*arguments):
    code = "from amp_migrate.commands.migrate import main; main(prog_name='amp-migrate')"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=240)


def journals(state):
    return [json.loads(file.read_bytes()) for file in state.rglob("*.json")]


def test_a_run_leaves_what_another_wrote_meanwhile(project, state):
    later = Waiting("train.py")
    assert run("train.py", "-w").returncode == 0
    written = (project / "train.py").read_text()
    assert "amp.scaler" in written
    code, errors = later.go_on()
    assert code == 2
    assert "train.py: changed since it was analysed; nothing was written, run again" in errors
    assert "free some space" not in errors
    assert (project / "train.py").read_text() == written
    assert len(journals(state)) == 1
    assert run("--undo").returncode == 0
    assert (project / "train.py").read_text() == TRAIN
    assert "nothing to undo" in run("--undo").stderr


def test_a_copy_of_the_runtime_that_another_made_stays(project, state):
    later = Waiting("train.py", "--vendor")
    assert run("train.py", "-w", "--vendor").returncode == 0
    files = sorted(os.listdir(project / "amp_runtime"))
    assert later.go_on()[0] == 2
    assert sorted(os.listdir(project / "amp_runtime")) == files
    assert len(journals(state)) == 1


def test_a_file_that_the_script_imports_may_not_change_either(project, state):
    later = Waiting("train.py")
    (project / "helper.py").write_text(HELPER.replace("1e-3", "1e-4"))
    code, errors = later.go_on()
    assert code == 2
    assert "helper.py: changed since it was analysed; nothing was written, run again" in errors
    assert (project / "train.py").read_text() == TRAIN
    assert journals(state) == []


def test_what_was_decided_is_not_remembered_for_a_text_that_came_later(project):
    train = project / "train.py"
    reach = Reach((train,), (), {}, read={train: digest_of(train.read_bytes())})
    report = Report(train, "absent", "absent", reach=reach)
    for text, known in ((TRAIN, report), (TRAIN + "# later\n", None)):
        train.write_text(text)
        memory = DecisionCache(project / "cache", Options(), project)
        memory.store(Decided(train, report))
        memory.save()
        again = DecisionCache(project / "cache", Options(), project).lookup(train)
        assert (again and again.report) == known


def test_the_lock_of_each_repository_is_taken(project, state):
    (project / "part").mkdir()
    for folder in (project, project / "part"):
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (project / "part" / "__init__.py").touch()
    (project / "helper.py").unlink()
    (project / "part" / "step.py").write_text(
        "def step(loss, optimizer):\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
    )
    script = TRAIN.split("    optimizer.zero_grad()")[0].replace(
        "from helper import make", "from part.step import step"
    )
    loss = "    step(torch.nn.functional.cross_entropy(model(x), y), optimizer)\n"
    (project / "train.py").write_text(script.replace("make()", "0.1") + loss)
    later = Waiting("train.py", "--allow-dirty")
    store = project / "part" / ".git" / "amp-migrate"
    store.mkdir()
    with locked(store / "lock"):
        code, errors = later.go_on()
    assert code == 2
    assert "another amp-migrate is writing in part" in errors
