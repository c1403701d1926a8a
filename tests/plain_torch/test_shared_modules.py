"""Scripts in plain torch that share modules: no start keeps what is changed from those that are not migrated."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

HEAD = """import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
"""
ENGINE = f"""{HEAD}

def train_one_epoch(model, loader, optimizer):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def evaluate(model, loader):
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += F.cross_entropy(model(x), y).item()
    return total


def helper(path):
    return torch.load(path)
"""
SCRIPT = f"""{HEAD}
from engine import evaluate, train_one_epoch

model = nn.Linear(4, 2)
optimizer = torch.optim.{{optimizer}}(model.parameters(), lr=0.1)
loader = DataLoader([(torch.randn(4), 1) for _ in range(8)], batch_size=4)
train_one_epoch(model, loader, optimizer)
print(evaluate(model, loader))
"""
ODD = (
    SCRIPT.format(optimizer="SGD")
    + """
loss = model(torch.randn(2, 4)).sum()
loss.backward()
for p in model.parameters():
    p.data -= p.grad
"""
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    work = tmp_path / "work"
    work.mkdir()
    (work / "pyproject.toml").write_text("")
    (work / "engine.py").write_text(ENGINE)
    (work / "adam.py").write_text(SCRIPT.format(optimizer="Adam"))
    monkeypatch.chdir(work)
    return work


def invoke(*arguments):
    from amp_migrate.commands.migrate import main

    return CliRunner().invoke(main, ["--no-cache", "-j", "1", *map(str, arguments)])


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.py")}


def test_a_module_that_two_scripts_share_is_written_once_for_both(project):
    (project / "sgd.py").write_text(SCRIPT.format(optimizer="SGD"))
    done = invoke("adam.py", "sgd.py", "--target", "torch", "-w")
    assert done.stderr.count("precision migrated") == 2, done.stderr
    found = texts(project)
    assert "torch.autocast(" in found["engine.py"] and not any("amp_runtime" in text for text in found.values())
    assert invoke("adam.py", "sgd.py", "--target", "torch", "--check").exit_code == 0


def test_a_script_is_left_alone_where_another_that_is_declined_runs_what_it_would_change(project):
    (project / "odd.py").write_text(ODD)
    done = invoke("adam.py", "odd.py", "--target", "torch", "-w")
    assert "AMP390" in done.stderr and "plain torch does not wait for a start" in done.stderr, done.stderr
    assert texts(project)["engine.py"] == ENGINE and "--target runtime" in done.stderr
    # The runtime does nothing in a script that does not start it.
    done = invoke("adam.py", "odd.py", "-w")
    assert "AMP390" not in done.stderr and "amp_runtime" in texts(project)["engine.py"]


def test_a_region_alone_is_felt_by_another_script_too(project):
    (project / "odd.py").write_text(ODD)
    done = invoke("adam.py", "odd.py", "--target", "torch", "--dtype", "bf16", "-w")
    assert "AMP390" in done.stderr and texts(project)["engine.py"] == ENGINE, done.stderr
    # Its own file is nobody else's.
    (project / "odd.py").write_text(
        ODD.replace("train_one_epoch(model, loader, optimizer)", "").replace("evaluate(", "len(")
    )
    done = invoke("adam.py", "odd.py", "--target", "torch", "--dtype", "bf16")
    assert "AMP390" not in done.stderr, done.stderr


def test_a_script_is_left_alone_where_one_that_was_not_named_calls_what_is_given_the_scaler(project):
    (project / "sgd.py").write_text(SCRIPT.format(optimizer="SGD"))
    done = invoke("adam.py", "--target", "torch", "-w")
    assert "`train_one_epoch` is given the scaler now; sgd.py calls it too" in done.stderr, done.stderr
    assert texts(project)["engine.py"] == ENGINE
    (project / "sgd.py").write_text("from engine import helper\n\nprint(helper('x'))\n")
    assert "precision migrated" in invoke("adam.py", "--target", "torch").stderr


def test_what_evaluates_elsewhere_is_noted(project):
    (project / "score.py").write_text("import engine\n\nprint(engine.evaluate(None, []))\n")
    done = invoke("adam.py", "--target", "torch")
    assert "precision migrated" in done.stderr, done.stderr
    assert (
        "AMP184 autocast-for-others: score.py is not migrated, and runs `evaluate` under autocast, too" in done.stderr
    )
    assert "score.py" not in invoke("adam.py").stderr


def test_scripts_of_which_one_is_on_the_runtime_already(project):
    (project / "sgd.py").write_text(SCRIPT.format(optimizer="SGD"))
    assert invoke("adam.py", "-w").exit_code == 0
    on_runtime = texts(project)
    # The other one alone has no start, and the module that both share is in the runtime's words.
    done = invoke("sgd.py", "--target", "torch", "-w")
    assert "precision declined" in done.stderr and texts(project) == on_runtime
    # The first cannot leave the runtime alone either: the module would change for the other.
    done = invoke("adam.py", "--target", "torch", "-w", "--allow-dirty")
    assert "AMP390" in done.stderr and texts(project) == on_runtime, done.stderr


def test_both_leave_the_runtime_together(project):
    (project / "sgd.py").write_text(SCRIPT.format(optimizer="SGD"))
    invoke("adam.py", "sgd.py", "--target", "torch", "-w")
    at_once = texts(project)
    invoke("--undo", "--allow-dirty")
    invoke("adam.py", "sgd.py", "-w")
    done = invoke("adam.py", "sgd.py", "--target", "torch", "-w", "--allow-dirty")
    assert done.stderr.count("precision migrated") == 2, done.stderr
    assert texts(project) == at_once


def test_what_two_scripts_need_at_the_head_of_a_module_is_there_once(project):
    saving = "\n\ndef save(model, path):\n    torch.save(model.state_dict(), path)\n"
    (project / "engine.py").write_text(ENGINE + saving)
    script = SCRIPT.format(optimizer="SGD").replace("evaluate, train", "evaluate, save, train")
    (project / "sgd.py").write_text(script + 'save(model, "model.pt")\n')
    done = invoke("adam.py", "sgd.py", "--target", "torch", "--ddp", "-w")
    assert done.stderr.count("precision migrated, distribution migrated") == 2, done.stderr
    lines = texts(project)["engine.py"].splitlines()
    heads = [line for line in lines if line.startswith(("import ", "from ", "RANK =", "USE_AMP ="))]
    assert len(heads) == len(set(heads)) and any(line.startswith("RANK =") for line in heads), heads
    assert sum("if RANK == 0" in line for line in lines) == 1
    for path in project.glob("*.py"):
        compile(path.read_text(), path.name, "exec")
    assert invoke("adam.py", "sgd.py", "--target", "torch", "--ddp", "--check").exit_code == 0
