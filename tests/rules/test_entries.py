"""Which files of a folder are taken for training scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from amp_rules.folder.import_lines import scan
from amp_rules.folder.training_scripts import TrainingScripts, find_entries
from amp_rules.source.files import Files

TRAINER = "import torch\n\n\ndef fit(loss):\n    loss.backward()\n"
GUARDED = "\n\nif __name__ == '__main__':\n    fit(1)\n"


@pytest.fixture
def find(tmp_path):
    def call(**texts: str) -> TrainingScripts:
        """Take the files by their names, with ``_in_`` between a folder and what is in it."""
        paths = []
        for name, text in texts.items():
            path = tmp_path / (name.replace("_in_", "/").replace("DUNDER", "__") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            paths.append(path)
        (tmp_path / ".git").mkdir()
        found = find_entries(paths, Files())
        for group in (found.scripts, found.users, found.trainers, found.others):
            group[:] = [path.relative_to(tmp_path).as_posix() for path in group]
        return found

    return call


def test_a_guarded_file_that_leads_to_a_backward_pass_is_a_script(find):
    found = find(trainer=TRAINER, train="from trainer import fit" + GUARDED, test="import torch\nprint(torch)\n")
    assert found.scripts == ["train.py"]
    assert found.trainers == ["trainer.py"]
    assert found.others == ["trainer.py", "test.py"]
    assert (found.files, found.lines) == (3, 11)


@pytest.mark.parametrize(
    "statement",
    [
        "import engine.trainer",
        "import engine.trainer as t",
        "from engine import trainer",
        "from engine.trainer import fit",
        "from engine.trainer import *",
        "from engine import (\n    other,  # no\n    trainer,\n)",
        "from engine import other, \\\n    trainer",
        "from . import engine\nfrom .engine import trainer",
        "def main():\n    from engine.trainer import fit",
        "import importlib\nt = importlib.import_module('engine.trainer')",
        "import os, engine.trainer as t",
    ],
)
def test_every_form_of_import_is_followed(find, statement):
    found = find(engine_in_trainer=TRAINER, engine_in_other="x = 1\n", train=statement + GUARDED)
    assert found.scripts == ["train.py"]


def test_an_import_through_packages_and_circles_is_followed(find):
    found = find(
        pkg_in_DUNDERinitDUNDER="from .core import run\n",
        pkg_in_core="from . import loop\n\n\ndef run():\n    loop.fit(1)\n",
        pkg_in_loop="from pkg import core\n" + TRAINER,
        main="import pkg\n\npkg.run()\n",
        tool="import os" + GUARDED,
    )
    assert found.scripts == ["main.py"]


def test_a_file_without_a_guard_is_a_script_if_it_works_and_nobody_imports_it(find):
    work = TRAINER + "\n\nfit(torch.ones(1))\n"
    found = find(flat=work, shared=work, user="import shared\nshared.fit(1)\n", library=TRAINER, setup="a = int('1')\n")
    assert found.scripts == ["flat.py", "user.py"]


def test_a_module_run_by_its_package_and_a_console_script_are_scripts(find, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project.scripts]\ntrain = "tool.command:main"\n')
    found = find(
        tool_in_DUNDERmainDUNDER="from tool.command import main\n\nmain()\n",
        tool_in_command="from tool import trainer\n\n\ndef main():\n    trainer.fit(1)\n",
        tool_in_trainer=TRAINER,
    )
    assert found.scripts == ["tool/__main__.py", "tool/command.py"]


def test_a_file_that_cannot_be_parsed_is_left_to_the_analysis(find):
    assert find(old=TRAINER + "print 'done'\n").scripts == ["old.py"]


def test_a_framework_counts_as_training(find):
    found = find(fit="import pytorch_lightning as pl\n\n\ndef fit(x):\n    pl.Trainer().fit(x)\n" + GUARDED)
    assert found.scripts == ["fit.py"]


def test_users_of_apex_that_no_script_leads_to_are_told_apart(find):
    found = find(layer="import torch\nfrom apex.normalization import FusedLayerNorm\n", train=TRAINER + GUARDED)
    assert (found.scripts, found.users) == (["train.py"], ["layer.py"])


def test_words_in_comments_are_no_imports(find):
    found = find(trainer=TRAINER, tool="# import trainer\nimport os  # from trainer import fit" + GUARDED)
    assert found.scripts == []


def test_a_scan_reads_levels_and_names():
    data = b"from ..a.b import c, d as e\r\nfrom . import f\nimport g.h as i, j\n  import k\n"
    assert scan(Path("x.py"), data).imports == (
        (2, "a.b", ("c", "d")),
        (1, "", ("f",)),
        (0, "g.h", ()),
        (0, "j", ()),
        (0, "k", ()),
    )


@pytest.mark.parametrize("source", ["from trainer import fit\n\nfit(1)", ["from trainer import fit\n", "\n", "fit(1)"]])
def test_a_notebook_leads_to_what_its_cells_import(tmp_path, source):
    cells = [
        {"cell_type": "markdown", "source": "import other"},
        {"cell_type": "code", "source": source, "outputs": []},
    ]
    notebook, trainer = tmp_path / "run.ipynb", tmp_path / "trainer.py"
    notebook.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    trainer.write_text(TRAINER)
    assert find_entries([notebook, trainer], Files()).scripts == [notebook]


def test_a_link_in_a_circle_hides_no_file(tmp_path):
    for name, target in (("one", "two"), ("two", "one")):
        (tmp_path / name).symlink_to(tmp_path / target)
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "package").mkdir()
    files = Files()
    assert tmp_path / "train.py" in files
    assert files.is_folder(tmp_path / "package")


def test_a_notebook_that_never_mentions_the_training_is_none(tmp_path):
    cells = [{"cell_type": "code", "source": "from trainer import show\nshow(1)", "outputs": []}]
    notebook, trainer = tmp_path / "look.ipynb", tmp_path / "trainer.py"
    notebook.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    trainer.write_text(TRAINER + "\n\ndef show(model):\n    print(model)\n")
    assert find_entries([notebook, trainer], Files()).scripts == []
