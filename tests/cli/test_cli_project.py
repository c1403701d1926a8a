"""A folder: which scripts are decided on, by how many processes, and what is remembered."""

from __future__ import annotations

import json
import os

import pytest
from cli_standin import TRAIN

LIBRARY = "import torch\n\n\ndef fit(loss):\n    loss.backward()\n"
GUARDED = "from trainer import fit\n\nif __name__ == '__main__':\n    fit(1)\n"


@pytest.fixture
def tree(folder):
    def write(**texts):
        for name, text in texts.items():
            path = folder / (name.replace("_in_", "/").replace("DUNDER", "__") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return write


def entries(done):
    return [entry["path"] for entry in json.loads(done.stdout)["entries"]]


def test_only_scripts_that_may_train_are_decided_on(tree, invoke):
    tree(train=TRAIN, tool="import os\nprint(os)\n", sub_in_other=TRAIN, trainer=LIBRARY, main=GUARDED)
    assert entries(invoke(".", "--format", "json")) == ["main.py", "sub/other.py", "train.py"]


def test_the_summary_counts_what_was_looked_at(tree, invoke):
    tree(train=TRAIN, tool="import os\n")
    done = invoke(".")
    assert "1 training script in 2 files (4 lines)" in done.stderr


def test_a_training_step_that_no_script_leads_to_is_told(tree, invoke):
    tree(train=TRAIN, lonely=LIBRARY)
    done = invoke(".")
    assert "note: lonely.py has a training step, but no training script that was found imports it" in done.stderr
    assert "lonely.py has" not in invoke(".", "--entry", "train.py").stderr


@pytest.mark.parametrize("entry", ["train.py", "./train.py", "sub/train.py", "sub/*", "tr*n.py"])
def test_entries_are_chosen_by_name_path_or_pattern(tree, invoke, entry):
    tree(sub_in_train=TRAIN, eval=TRAIN)
    assert entries(invoke(".", "--format", "json", "--entry", entry)) == ["sub/train.py"]


def test_an_entry_that_is_not_there_is_an_error_that_names_the_others(tree, invoke):
    tree(train=TRAIN)
    done = invoke(".", "--entry", "main.py")
    assert done.exit_code == 2
    assert done.stderr == "error: --entry main.py: no training script found is called so; found: train.py\n"
    done = invoke("train.py", "--entry", "train.py")
    assert done.exit_code == 2
    assert "no folder is given" in done.stderr


def test_named_files_are_decided_on_whatever_they_hold(tree, invoke):
    tree(tool="import os\n", trainer=LIBRARY)
    assert entries(invoke("tool.py", "trainer.py", "--format", "json")) == ["tool.py", "trainer.py"]


@pytest.mark.parametrize("jobs", ["1", "2", "3"])
def test_the_result_does_not_depend_on_the_number_of_processes(tree, invoke, jobs):
    tree(**{f"p{number % 3}_in_m{number}": TRAIN + f"# {number}\n" for number in range(12)}, bad="print 'x'\n")
    tree(boom=TRAIN + "# BOOM\n", odd=TRAIN + "# DECLINE\n")
    alone = invoke(".", "--no-cache", "-j", "1", "--format", "json")
    together = invoke(".", "--no-cache", "-j", jobs, "--format", "json")
    assert (together.stdout, together.stderr) == (alone.stdout, alone.stderr)
    assert len(json.loads(alone.stdout)["files"]) == 12


def test_modules_that_scripts_share_are_written_once(tree, invoke, folder):
    tree(shared="import torch\n\n\ndef fit(loss):\n    loss.backward()\n", one="import shared\n" + TRAIN)
    tree(two="import shared\n" + TRAIN)
    assert invoke(".", "-w").exit_code == 0
    assert (folder / "shared.py").read_text().count("amp.scaler.scale") == 1
    assert all("amp.scaler" in (folder / f"{name}.py").read_text() for name in ("one", "two"))


def test_a_script_that_gave_way_is_decided_on_again(tree, invoke, folder, monkeypatch):
    import amp_rules
    from amp_rules.plan.report import Edit, FileChange, Report
    from amp_rules.source.reach import Reach
    from amp_rules.source.spans import Position, Span

    def migrate(entry, options, *, files):
        shared = folder / "shared.py"
        before = files.source(shared).text
        wanted = before.replace("f()", f"{entry.stem}()")
        span = Span(Position(1, 1), Position(1, 2))
        edits = (Edit(shared, span, "AMP103", "name", entry.stem),) * (2 if entry.stem == "two" else 1)
        reach = Reach((entry, shared), (), {})
        if wanted == before:
            return Report(entry, "already", "already", reach=reach)
        return Report(entry, "migrated", "migrated", (FileChange(shared, before, wanted),), edits, reach=reach)

    monkeypatch.setattr(amp_rules, "migrate", migrate)
    tree(shared="f()\n", one=TRAIN, two=TRAIN)
    done = invoke(".", "--format", "json", "--no-cache", "--entry", "one.py", "--entry", "two.py")
    outcome = {entry["path"]: entry["precision"] for entry in json.loads(done.stdout)["entries"]}
    # The other's change leaves nothing to do, which a conflict would have hidden.
    assert outcome == {"one.py": "already", "two.py": "migrated"}
    assert "+two()" in json.loads(done.stdout)["files"][0]["diff"]


def test_standard_input_is_neither_remembered_nor_looked_up(tree, invoke, state):
    first = invoke("-", input=TRAIN)
    assert "+amp.scaler" in first.stdout
    assert invoke("-", input=TRAIN).stdout == first.stdout


REAL = """
import torch
from torch import nn, optim
from helper import batches

model = nn.Linear(4, 2)
optimizer = optim.SGD(model.parameters(), lr=0.1)
for x, y in batches():
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
HELPER = "import torch\n\n\ndef batches():\n    return [(torch.randn(8, 4), torch.randint(2, (8,)))]\n"


@pytest.fixture
def real(tree, monkeypatch):
    """A project for the real analysis, and a count of how often it is asked."""
    import amp_rules
    from amp_rules.plan import migration

    asked = []

    def migrate(entry, *args, **kwargs):
        asked.append(entry.name)
        return migration.migrate(entry, *args, **kwargs)

    monkeypatch.setattr(amp_rules, "migrate", migrate)
    # The sources of the rules may be edited while the tests run.
    monkeypatch.setattr("amp_migrate.run.store.fingerprint", lambda: "rules")
    tree(train=REAL, helper=HELPER)
    return asked


def test_what_is_unchanged_is_remembered(real, invoke):
    first = invoke(".", "--ddp")
    second = invoke(".", "--ddp")
    assert real == ["train.py"]
    assert (second.stdout, second.stderr) == (first.stdout, first.stderr)
    assert "+amp.init" in first.stdout
    json_first = invoke(".", "--ddp", "--format", "json", "--no-cache").stdout
    assert invoke(".", "--ddp", "--format", "json").stdout == json_first
    assert real == ["train.py", "train.py"]


@pytest.mark.parametrize("change", ["entry", "module", "new file", "sibling", "options", "gone", "no cache"])
def test_whatever_the_result_rests_on_is_looked_at(real, tree, invoke, folder, change):
    invoke(".")
    if change == "entry":
        tree(train=REAL + "# more\n")
    elif change == "module":
        tree(helper=HELPER + "# more\n")
    elif change == "new file":
        # Python would import the package now.
        tree(helper_in_DUNDERinitDUNDER=HELPER)
    elif change == "sibling":
        tree(train=REAL + "import importlib\nhelper = importlib.import_module(f'models.{x}')\n", models_in_a="")
        invoke(".")
        real.pop()
        tree(models_in_b="")
    elif change == "gone":
        (folder / "helper.py").unlink()
    invoke(".", *{"options": ["--ddp"], "no cache": ["--no-cache"]}.get(change, []))
    assert real == ["train.py", "train.py"]


def test_a_damaged_memory_counts_as_none(real, invoke):
    first = invoke(".").stdout
    for root, _, names in os.walk(os.environ["XDG_CACHE_HOME"]):
        for name in names:
            if name.endswith(".json"):
                with open(os.path.join(root, name), "ab") as file:
                    file.write(b"x")
    assert invoke(".").stdout == first
    assert real == ["train.py", "train.py"]


def test_another_folder_for_what_is_remembered(real, invoke, folder):
    invoke(".", "--cache-dir", "kept")
    assert (folder / "kept/CACHEDIR.TAG").exists()
    invoke(".", "--cache-dir", "kept")
    assert real == ["train.py"]


def test_a_script_that_takes_too_long_is_left_alone(tree, invoke, monkeypatch):
    import amp_rules

    def migrate(entry, *args, **kwargs):
        while True:
            pass

    monkeypatch.setattr(amp_rules, "migrate", migrate)
    tree(train=TRAIN)
    done = invoke(".", "--timeout", "0.2")
    assert done.exit_code == 2
    assert "train.py: analysis took longer than 0.2 s; left as it was (--timeout allows more)" in done.stderr


# ---- configurations ------------------------------------------------------------------------------------------


def test_what_is_remembered_rests_on_the_configuration(tmp_path, monkeypatch):
    from amp_migrate.commands.migrate import main
    from click.testing import CliRunner

    def said() -> str:
        return CliRunner().invoke(main, ["train.py", "--cache-dir", "cache"]).output

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import hydra\n\n\n@hydra.main(config_path='conf', config_name='c')\ndef main(cfg):\n"
        "    agent = hydra.utils.instantiate(cfg.agent)\n    agent.fit()\n\n\nmain()\n"
    )
    agent = (
        "import torch\n\n\nclass {name}:\n    def fit(self):\n        net = torch.nn.Linear(2, 1)\n"
        "        optimizer = torch.optim.SGD(net.parameters(), 0.1)\n        loss = net(torch.ones(1, 2)).sum()\n"
        "        loss.backward()\n        optimizer.step()\n"
    )
    (tmp_path / "one.py").write_text(agent.format(name="One"))
    (tmp_path / "two.py").write_text(agent.format(name="Two"))
    (tmp_path / "conf" / "agent").mkdir(parents=True)
    (tmp_path / "conf" / "c.yaml").write_text("defaults:\n  - agent: first\n")
    (tmp_path / "conf" / "agent" / "first.yaml").write_text("_target_: one.One\n")
    assert "b/one.py" in said()
    assert "b/one.py" in said()
    (tmp_path / "conf" / "agent" / "first.yaml").write_text("_target_: two.Two\n")
    assert "b/two.py" in (changed := said()) and "b/one.py" not in changed
    (tmp_path / "conf" / "agent" / "second.yaml").write_text("_target_: one.One\n")
    assert "b/one.py" in (both := said()) and "b/two.py" in both
