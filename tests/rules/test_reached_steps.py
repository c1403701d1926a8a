"""Which steps a script reaches: where modules are found, which commands run, and what is said of the rest."""

from __future__ import annotations

import textwrap

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

STEP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(args=None):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(80, 4), torch.randn(80, 1)), batch_size=8)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
"""
CALLS = "from steps.loop import train\n\ntrain()\n"


@pytest.fixture
def report(tmp_path):
    """Migrate ``tools/train.py`` of a project of some files, given by path."""

    def made(files, entry="tools/train.py"):
        (tmp_path / ".git").mkdir()
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return migrate(tmp_path / entry, Options(ddp=True))

    return made


# ---- folders on the path ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", 'export PYTHONPATH="$PWD/code/lib:$PYTHONPATH"\npython tools/train.py\n'),
        ("run.sh", "PYTHONPATH=code/lib python tools/train.py\n"),
        ("scripts/run.sh", 'PYTHONPATH="$(dirname $0)/../code/lib":$PYTHONPATH python tools/train.py\n'),
        ("scripts/run.sh", 'export PYTHONPATH=$(cd "$(dirname "$0")/../code" && pwd)/lib\n'),
        ("README.md", "Start it:\n\n    PYTHONPATH=`pwd`/code/lib python tools/train.py\n"),
        ("Dockerfile", "FROM pytorch\nENV PYTHONPATH /workspace/project/code/lib\n"),
        ("Dockerfile", "FROM pytorch\nENV PYTHONPATH=$ROOT/code/lib\n"),
        ("egs/here/path.sh", "TOP=$PWD/../..\nLIB=$TOP/code/lib\nexport PYTHONPATH=${LIB}/:$PYTHONPATH\n"),
        ("setup.py", 'setup(packages=find_packages("code/lib"), package_dir={"": "code/lib"})\n'),
        ("setup.cfg", "[options]\npackage_dir =\n    = code/lib\n"),
        ("setup.cfg", "[options.packages.find]\nwhere = code/lib\n"),
        ("pyproject.toml", '[tool.setuptools]\npackage-dir = {"" = "code/lib"}\n'),
        ("pyproject.toml", '[tool.setuptools.packages.find]\nwhere = ["code/lib"]\n'),
        ("pyproject.toml", '[tool.poetry]\npackages = [{ include = "steps", from = "code/lib" }]\n'),
        ("pyproject.toml", '[tool.hatch.build.targets.wheel]\npackages = ["code/lib/steps"]\n'),
    ],
)
def test_modules_are_found_where_the_repository_puts_them_on_the_path(report, name, text):
    found = report({"code/lib/steps/loop.py": STEP, "tools/train.py": CALLS, name: text})
    assert (found.precision, found.distribution) == ("migrated", "migrated")


def test_a_module_on_the_path_comes_before_an_empty_package_on_the_way(report):
    files = {
        "code/__init__.py": "",
        "code/loop/__init__.py": "",
        "code/loop/loop.py": STEP,
        "code/bin/train.py": "from loop import train\n\ntrain()\n",
        "run.sh": "PYTHONPATH=code/loop python code/bin/train.py\n",
    }
    assert report(files, "code/bin/train.py").precision == "migrated"


def test_a_package_that_is_installed_in_place_is_found(report):
    files = {
        "parts/engine/pyproject.toml": '[tool.setuptools.packages.find]\nwhere = ["python"]\n',
        "parts/engine/python/steps/loop.py": STEP,
        "README.md": "pip install -e parts/engine[all]\n",
        "tools/train.py": CALLS,
    }
    assert report(files).precision == "migrated"


def test_an_example_with_packaging_of_its_own_finds_the_package_of_the_repository(report):
    files = {"steps/loop.py": STEP, "examples/one/setup.py": "setup()\n", "examples/one/train.py": CALLS}
    assert report(files, "examples/one/train.py").precision == "migrated"


@pytest.mark.parametrize(
    "text", ["PYTHONPATH=../elsewhere\n", "# setup(package_dir={'': 'code/lib'})\n", "echo code/lib\n"]
)
def test_folders_outside_and_words_that_set_nothing_are_passed_over(report, text):
    name = "setup.py" if "setup" in text else "run.sh"
    found = report({"code/lib/steps/loop.py": STEP, "tools/train.py": CALLS, name: text})
    assert found.precision == "declined"


def test_the_result_rests_on_the_file_that_sets_the_path(report):
    files = {"code/lib/steps/loop.py": STEP, "tools/train.py": CALLS, "run.sh": "PYTHONPATH=code/lib python x.py\n"}
    assert [path.name for path in report(files).reach.settings] == ["run.sh"]


# ---- commands --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        'import fire\nfrom loop import train\nif __name__ == "__main__":\n    fire.Fire({"train": train})\n',
        'import fire\nimport loop\nif __name__ == "__main__":\n    fire.Fire(loop)\n',
        'from fire import Fire\nfrom loop import train\nif __name__ == "__main__":\n    Fire()\n',
        """
        import argparse
        from loop import train
        parser = argparse.ArgumentParser()
        parser.add_subparsers().add_parser("train").set_defaults(func=train)
        args = parser.parse_args()
        args.func(args)
        """,
        """
        import sys
        from loop import train
        COMMANDS = {"train": train}
        def main():
            COMMANDS[sys.argv[1]](sys.argv[2:])
        if __name__ == "__main__":
            main()
        """,
        """
        import click
        from loop import train
        @click.group(commands={"train": click.command()(train)})
        def cli():
            pass
        if __name__ == "__main__":
            cli()
        """,
    ],
)
def test_commands_that_the_command_line_chooses_are_followed(report, text):
    found = report({"tools/loop.py": STEP, "tools/train.py": text})
    assert found.precision == "migrated"


def test_methods_of_a_class_that_is_made_a_command_are_followed(report):
    body = textwrap.indent(STEP[STEP.index("def train") :].replace("(args=None)", "(self)"), "    ")
    engine = STEP[: STEP.index("def train")] + "class Engine:\n" + body
    entry = 'import fire\nfrom engine import Engine\nif __name__ == "__main__":\n    fire.Fire(Engine)\n'
    assert report({"tools/engine.py": engine, "tools/train.py": entry}).precision == "migrated"


# ---- what is not found -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "wanted"),
    [
        (CALLS, "AMP198", "`steps.loop` was not found"),
        ("import torch\nfrom .loop import run_training\nrun_training()\n", "AMP198", "`.loop` was not found"),
        (
            "from lab.launch import launch\nfrom lab.loop import train\nlaunch(func=train)\n",
            "AMP198",
            "`lab.loop` was not found",
        ),
        (
            "import torch\nfrom steps import *\noptimizer = make(Net())\nepoch(1, optimizer=optimizer)\n",
            "AMP198",
            "`epoch` may run one, and `steps` was not found",
        ),
        (
            "import torch\nfrom config import load\ntrainer = load().build()\ntrainer.train()\n",
            "AMP193",
            "`trainer.train()` may run one",
        ),
    ],
)
def test_a_script_that_seems_to_train_says_what_was_not_found(report, text, code, wanted):
    found = report({"tools/train.py": text})
    assert (found.precision, found.distribution) == ("declined", "declined")
    assert found.refusals[0].code == code and wanted in found.refusals[0].message


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nmodel = torch.load('m.pt')\nmodel.train()\n",
        "import torch\nfrom sklearn.svm import SVC\nSVC().fit([[1]], [1])\n",
        "import torch\nfrom sklearn.model_selection import train_test_split\ntrain_test_split([1])\n",
        "import torch\nfrom data.sets import get_train_loader\nget_train_loader()\n",
        "import tensorflow as tf\nfrom lab import train\ntrain()\n",
        "import torch\nfrom somewhere import evaluate\nevaluate()\n",
        "import torch\nfrom somewhere import *\nload_checkpoint('m.pt', optimizer=None)\nfit = print\nfit('x')\n",
        "import torch\nfrom somewhere import save_state\nsave_state('m.pt', optimizer)\n",
    ],
)
def test_a_script_that_does_not_train_has_no_step(report, text):
    assert report({"tools/train.py": text}).precision == "absent"


# ---- what is there already -------------------------------------------------------------------------------------

HELPER = """
import torch.distributed as dist
from torch.cuda.amp import GradScaler, autocast


def join():
    dist.init_process_group("nccl")


class Mixed:
    def __init__(self):
        self.scaler = GradScaler()

    @autocast()
    def forward(self, x):
        return x


def averaged(values):
    return sum(values) / len(values)
"""


def test_what_a_helper_only_offers_is_not_the_scripts(report):
    entry = STEP + "\n\nfrom helper import averaged\n\ntrain()\nprint(averaged([1, 2]))\n"
    found = report({"tools/helper.py": HELPER, "tools/train.py": entry})
    assert (found.precision, found.distribution) == ("migrated", "migrated")


@pytest.mark.parametrize(
    ("use", "precision", "distribution"),
    [
        ("from helper import join\njoin()", "migrated", "declined"),
        (
            "from helper import join\njoin()\nnn.parallel.DistributedDataParallel(nn.Linear(1, 1))",
            "migrated",
            "extended",
        ),
        ("from helper import Mixed\nMixed()", "already", "migrated"),
        ("from torch.distributed import *\n", "migrated", "already"),
    ],
)
def test_what_a_helper_does_when_it_is_called_is(report, use, precision, distribution):
    found = report({"tools/helper.py": HELPER, "tools/train.py": STEP + f"\n\n{use}\n\ntrain()\n"})
    assert (found.precision, found.distribution) == (precision, distribution)


@pytest.mark.parametrize(
    ("decorator", "precision"),
    [
        ("@autocast(enabled=False)", "migrated"),
        ("@autocast(False)", "migrated"),
        ("@custom_fwd", "migrated"),
        ("@autocast()", "already"),
        ("@autocast(enabled=FLAG)", "already"),
    ],
)
def test_an_autocast_that_is_switched_off_mixes_nothing(report, decorator, precision):
    helper = f"""
    from torch.cuda.amp import autocast, custom_fwd

    FLAG = True

    {decorator}
    def averaged(values):
        return sum(values) / len(values)
    """
    entry = STEP + "\n\nfrom helper import averaged\n\ntrain()\nprint(averaged([1, 2]))\n"
    assert report({"tools/helper.py": helper, "tools/train.py": entry}).precision == precision
