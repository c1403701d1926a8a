"""Models, optimizers and loaders that a function, a registry or a name known at run time makes."""

from __future__ import annotations

import textwrap

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

LOOP = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
{imports}

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch", default="Plain")
    args = parser.parse_args()
    {loader}
    {make}
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

if __name__ == "__main__":
    main()
"""
LOADER = "loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8, shuffle=True)"
NETS = """
from torch import nn
class Plain(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.f = nn.Linear(width, 1)
    def forward(self, x):
        return self.f(x)
class Deep(Plain):
    pass
"""
SGD = "\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
REGISTRY = """
class Registry:
    def __init__(self):
        self.known = {}
    def register(self, made=None):
        if made is None:
            def decorate(cls):
                self.known[cls.__name__] = cls
                return cls
            return decorate
        self.known[made.__name__] = made
    def get(self, name):
        found = self.known.get(name)
        return found
NETWORKS = Registry()
LOSSES = Registry()
"""
DICT_REGISTRY = """
def _enter(table, name, made):
    assert name not in table
    table[name] = made
class Registry(dict):
    def register(self, name):
        def decorate(made):
            _enter(self, name, made)
            return made
        return decorate
NETWORKS = Registry()
"""
REGISTERED = NETS.replace("class Plain", "@registry.NETWORKS.register{}\nclass Plain")


@pytest.fixture
def report_of(tmp_path):
    """Migrate a script that makes its model in the way given; other files are given by their names."""

    def build(make: str, imports: str = "", loader: str = LOADER, **others: str):
        files = {"train": LOOP.format(make=make, imports=imports, loader=loader), **others}
        for name, text in files.items():
            path = tmp_path / (name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return migrate(tmp_path / "train.py", Options(ddp=True))

    return build


MADE = {
    "function that looks a class up": (
        "model = create(args.arch)",
        "from nets import create",
        {"nets": NETS + "TABLE = dict(Plain=Plain, Deep=Deep)\ndef create(name):\n    return TABLE[name]()\n"},
    ),
    "table of tables": (
        'model = TABLE[args.arch]["cls"]()',
        'from nets import Deep, Plain\nTABLE = {"a": {"cls": Plain, "lr": 1.0}, "b": {"cls": Deep}}',
        {"nets": NETS},
    ),
    "class method and a table in the class": (
        "model = Factory.make(args.arch)",
        "from nets import Factory",
        {
            "nets": NETS
            + "class Factory:\n    table = {'p': Plain}\n    @classmethod\n"
            + "    def make(cls, n):\n        return cls.table[n]()\n"
        },
    ),
    "registry with a decorator": (
        "model = registry.NETWORKS.get(args.arch)()",
        "import nets, registry",
        {"nets": "import registry\n" + REGISTERED.format("()"), "registry": REGISTRY},
    ),
    "registry whose method is the decorator": (
        "model = registry.NETWORKS.get(args.arch)()",
        "import nets, registry",
        {"nets": "import registry\n" + REGISTERED.format(""), "registry": REGISTRY},
    ),
    "registry that is a dictionary": (
        "model = registry.NETWORKS[args.arch]()",
        "import nets, registry",
        {"nets": "import registry\n" + REGISTERED.format('("p")'), "registry": DICT_REGISTRY},
    ),
    "subclasses that enter themselves": (
        "model = Base.known[args.arch]()",
        "from nets import Base",
        {
            "nets": NETS.replace(
                "class Plain(nn.Module)",
                "class Base(nn.Module):\n    known = {}\n    def __init_subclass__(cls):\n"
                "        cls.known[cls.__name__] = cls\nclass Plain(Base)",
            )
        },
    ),
    "name put together and a fixed class": (
        'model = getattr(importlib.import_module(f"models.{args.arch}"), "Plain")()',
        "import importlib",
        {"models____init__": "", "models__small": NETS, "models__large": NETS},
    ),
    "name put together below the package": (
        "model = loading.load(args.file).Plain()",
        "from models import loading",
        {
            "models__loading": "import importlib\ndef load(name):\n"
            "    return importlib.import_module('.nets.' + name, package=__package__)\n",
            "models__nets__plain": NETS,
        },
    ),
    "name put together in the package": (
        "model = loading.load(args.file).Plain()",
        "from models import loading",
        {
            "models__loading": "import importlib\ndef load(name):\n"
            "    return importlib.import_module('.' + name, __package__)\n",
            "models__plain": NETS,
        },
    ),
    "name put together and a class of that name": (
        'model = getattr(importlib.import_module("models." + args.arch.lower()), args.arch)()',
        "import importlib",
        {"models____init__": "", "models__plain": NETS},
    ),
    "globals of the other file": (
        "model = nets.get(args.arch)()",
        "import nets",
        {"nets": NETS + "def get(name):\n    return globals()[name]\n"},
    ),
    "module of its own name": (
        "model = nets.get(args.arch)()",
        "import nets",
        {"nets": "import sys\n" + NETS + "def get(name):\n    return getattr(sys.modules[__name__], name)\n"},
    ),
    "vars of a module": ("model = vars(nets)[args.arch]()", "import nets", {"nets": NETS}),
    "evaluated name": ("model = eval(args.arch)()", "from nets import *", {"nets": NETS}),
    "evaluated path": ('model = eval("nets." + args.arch)()', "import nets", {"nets": NETS}),
    "wrapper made in a function": (
        "model = wrap(Plain())",
        "from nets import Plain, wrap",
        {
            "nets": NETS
            + "class Wrapper(nn.Module):\n    def __init__(self, net):\n"
            + "        super().__init__()\n        self.net = net\n"
            + "    def forward(self, x):\n        return self.net(x)\n"
            + "def wrap(net):\n    net = Wrapper(net)\n    return net\n"
        },
    ),
}


@pytest.mark.parametrize("make, imports, files", MADE.values(), ids=MADE)
def test_a_model_made_elsewhere_is_prepared_in_the_script(report_of, make, imports, files) -> None:
    report = report_of(make + SGD, imports, **files)
    assert (report.precision, report.distribution) == ("migrated", "migrated"), report.refusals
    (change,) = report.changes
    made = make.partition(" = ")[2]
    assert f"model = amp.prepare_model({made})" in change.after


def test_a_variable_that_held_many_functions_holds_the_model_too(report_of) -> None:
    functions = "".join(f"def net{number}():\n    return nn.Linear(4, 1)\n" for number in range(50))
    make = "model = nets.__dict__[args.arch]\n    model = model()"
    report = report_of(make + SGD, "import nets", nets="from torch import nn\n" + functions)
    assert (report.precision, report.distribution) == ("migrated", "migrated")


def test_registries_of_one_class_do_not_share_their_entries(report_of) -> None:
    losses = "import registry\nfrom torch import nn\n@registry.LOSSES.register()\nclass Loss(nn.Module):\n    pass\n"
    nets = "import registry\n" + REGISTERED.format("()")
    make = "model = registry.NETWORKS.get(args.arch)()\n    criterion = registry.LOSSES.get('Loss')()" + SGD
    report = report_of(make, "import losses, nets, registry", nets=nets, losses=losses, registry=REGISTRY)
    (change,) = report.changes
    assert change.after.count("prepare_model") == 1


def test_a_loader_is_prepared_where_it_is_taken_from_a_file_that_stays_as_it_is(report_of) -> None:
    data = (
        "from torch.utils.data import DataLoader\ndef get(a):\n"
        "    loader = DataLoader(a, batch_size=2, shuffle=True)\n    return loader, DataLoader(a)\n"
    )
    loader = "loader, other = get(list(range(8)))"
    report = report_of("model = nn.Linear(1, 1)" + SGD, "from data import get", loader, data=data)
    (change,) = report.changes
    assert "loader, other = get(list(range(8)))\n    loader = amp.prepare_loader(loader)\n" in change.after


UNDER_NAMES = """models = {{}}
    models["a"] = Plain()
    models["b"] = Deep(width=1)
    {model}
    weights = []
    weights += list(models["a"].parameters())
    weights += list(models["b"].parameters())
    optimizer = torch.optim.Adam(weights)"""


def test_models_kept_under_names_are_prepared_one_by_one(report_of) -> None:
    make = UNDER_NAMES.format(model='model = lambda x: models["b"](models["a"](x))')
    (change,) = report_of(make, "from nets import Deep, Plain", nets=NETS).changes
    assert 'models["a"] = amp.prepare_model(Plain()' in change.after
    assert 'models["b"] = amp.prepare_model(Deep(width=1)' in change.after


def test_models_kept_under_names_are_prepared_with_the_chain_of_them(report_of) -> None:
    make = UNDER_NAMES.format(model='model = nn.Sequential(models["a"], models["b"])')
    (change,) = report_of(make, "from nets import Deep, Plain", nets=NETS).changes
    assert 'model = amp.prepare_model(nn.Sequential(models["a"], models["b"])' in change.after
    assert change.after.count("prepare_model") == 1


def test_two_subclasses_that_make_the_same_attribute_both_prepare_it(report_of) -> None:
    task = """
    import torch
    from nets import Deep, Plain
    class Base:
        def step(self, x, y):
            loss = torch.nn.functional.mse_loss(self.net(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
    class One(Base):
        def __init__(self):
            self.net = Plain()
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
    class Two(Base):
        def __init__(self):
            self.net = Deep()
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
    """
    make = "task = {'one': One, 'two': Two}[args.arch]()\n    for x, y in loader:\n        task.step(x, y)\n    return"
    report = report_of(make, "from task import One, Two", task=task, nets=NETS)
    after = next(change.after for change in report.changes if change.path.stem == "task")
    assert "self.net = amp.prepare_model(Plain()" in after
    assert "self.net = amp.prepare_model(Deep()" in after


def test_what_only_the_settings_name_is_a_model_also_behind_its_move(report_of) -> None:
    nets = NETS + "import pydoc\ndef load(settings):\n    return pydoc.locate(settings['name'])()\n"
    make = "net = load(json.load(open(args.arch)))\n    model = net.to('cpu')" + SGD
    report = report_of(make, "import json\nfrom nets import load", nets=nets)
    after = next(change.after for change in report.changes if change.path.stem == "train")
    assert (
        "net = amp.prepare_model(load(json.load(open(args.arch)))" in after
        or "amp.prepare_model(net.to('cpu')" in after
    )


def test_a_name_that_only_the_settings_know_is_refused_with_the_call_that_uses_it(report_of) -> None:
    nets = NETS + (
        "import pydoc, yaml\ndef load(path):\n    settings = yaml.safe_load(open(path))\n"
        "    return pydoc.locate(settings['model']['name'])()\n"
    )
    make = "net = load(args.arch)\n    model = Plain()\n    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)"
    report = report_of(make, "from nets import Plain, load", nets=nets)
    assert report.precision == "declined"
    message = report.refusals[0].message
    assert "`load(args.arch)`" in message
    assert "by a name that is known only when the script runs: `pydoc.locate(settings['model']['name'])`" in message


def test_what_has_an_unknown_attribute_is_named_with_the_call_that_makes_it(report_of) -> None:
    task = """
    import torch
    from nets import Plain
    class One:
        def __init__(self):
            self.net = Plain()
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        def step(self, x, y):
            loss = torch.nn.functional.mse_loss(self.net(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
    """
    make = (
        "task = getattr(tasks, args.arch)()\n    for x, y in loader:\n        task.step(x, y)\n"
        "    if hasattr(task, 'decay'):\n        task.decay.step()\n    return"
    )
    report = report_of(make, "import task as tasks", task=task, nets=NETS)
    assert report.precision == "declined"
    message = report.refusals[0].message
    assert "it is an attribute of `task`, which `getattr(tasks, args.arch)()` makes" in message
    assert message.endswith("by a name that is known only when the script runs")


FLAGGED = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from nets import Plain

def run({parameters}):
    for x in {loop}:
        loss = model(x).mean()
        if {test}:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

model = Plain()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{rest}
"""
TWO = "train_loader, test_loader = DataLoader([1.0] * 8, shuffle=True), DataLoader([2.0] * 8)\n"
BY_NAME = "loaders = {p: DataLoader([1.0] * 8) for p in ['train', 'val']}\n"
FLAGS = {
    "default of the flag": (
        "loader, train=True",
        "loader",
        "train",
        TWO + "run(train_loader)\nrun(test_loader, train=False)\n",
        "amp.prepare_loader(DataLoader([1.0] * 8, shuffle=True)), DataLoader([2.0] * 8)",
    ),
    "mode by name": (
        "mode, loader",
        "loader",
        "mode == 'train'",
        TWO + "run('train', train_loader)\nrun('test', test_loader)\n",
        "amp.prepare_loader(DataLoader([1.0] * 8, shuffle=True)), DataLoader([2.0] * 8)",
    ),
    "evaluation negated": (
        "loader, evaluate=False",
        "loader",
        "not evaluate",
        TWO + "run(train_loader)\nrun(test_loader, True)\n",
        "amp.prepare_loader(DataLoader([1.0] * 8, shuffle=True)), DataLoader([2.0] * 8)",
    ),
    "optimizer or none": (
        "loader, optimizer=None",
        "loader",
        "optimizer is not None",
        TWO + "run(train_loader, optimizer)\nrun(test_loader)\n",
        "amp.prepare_loader(DataLoader([1.0] * 8, shuffle=True)), DataLoader([2.0] * 8)",
    ),
    "one of two by the flag": (
        "train",
        "batches",
        "train",
        TWO + "run(True)\nrun(False)\n",
        "amp.prepare_loader(DataLoader([1.0] * 8, shuffle=True)), DataLoader([2.0] * 8)",
    ),
    "phases of a dictionary": (
        "",
        "loaders[phase]",
        'phase == "train"',
        BY_NAME + "for phase in ['train', 'val']:\n    run()\n",
        'loaders["train"] = amp.prepare_loader(loaders["train"])',
    ),
}


@pytest.mark.parametrize("parameters, loop, test, rest, expected", FLAGS.values(), ids=FLAGS)
def test_a_loop_that_trains_by_a_flag_shares_out_the_training_data_only(
    tmp_path, parameters, loop, test, rest, expected
) -> None:
    script = FLAGGED.format(parameters=parameters, loop=loop, test=test, rest=rest)
    script = script.replace(
        "    for x in batches", "    batches = train_loader if train else test_loader\n    for x in batches"
    )
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "train.py").write_text(script)
    report = migrate(tmp_path / "train.py", Options(ddp=True))
    (change,) = report.changes
    assert expected in change.after
    assert change.after.count("prepare_loader(") == 1


def test_a_flag_that_is_not_known_where_the_loop_is_called_is_refused(tmp_path) -> None:
    rest = TWO + "for mode, loader in [(True, train_loader), (False, test_loader)]:\n    run(loader, mode)\n"
    script = FLAGGED.format(parameters="loader, train", loop="loader", test="train", rest=rest)
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "train.py").write_text(script)
    report = migrate(tmp_path / "train.py", Options(ddp=True))
    assert (report.precision, report.distribution) == ("migrated", "declined")
    assert "one loop over `loader` trains and evaluates" in report.refusals[0].message


def test_a_condition_with_a_backward_pass_on_either_side_is_no_flag(tmp_path) -> None:
    rest = TWO + "run(train_loader, True)\nrun(train_loader, False)\n"
    script = FLAGGED.format(parameters="loader, twice", loop="loader", test="twice", rest=rest)
    script = script.replace(
        "            optimizer.step()\n", "            optimizer.step()\n        else:\n            loss.backward()\n"
    )
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "train.py").write_text(script)
    (change,) = migrate(tmp_path / "train.py", Options(ddp=True)).changes
    assert "amp.prepare_loader(DataLoader([1.0] * 8, shuffle=True))" in change.after


def test_a_package_that_imports_its_own_modules_is_followed(tmp_path) -> None:
    (tmp_path / "net" / "models").mkdir(parents=True)
    (tmp_path / "net" / "__init__.py").write_text("from . import models\n")
    (tmp_path / "net" / "models" / "__init__.py").write_text(
        "from .plain import Plain\n_TABLE = {'plain': Plain}\ndef create(name):\n    return _TABLE[name]()\n"
    )
    (tmp_path / "net" / "models" / "plain.py").write_text(NETS)
    make = "model = models.create(args.arch)" + SGD
    (tmp_path / "train.py").write_text(LOOP.format(make=make, imports="from net import models", loader=LOADER))
    report = migrate(tmp_path / "train.py", Options(ddp=True))
    assert (report.precision, report.distribution) == ("migrated", "migrated"), report.refusals


FACTORY = "def make(config, module, *args):\n    return getattr(module, config['type'])(*args, **config['args'])\n"
SPEECH = """
import shutil
import torchaudio
from pathlib import Path
from speechbrain.utils.data_utils import download_file
from torch.utils.data import Dataset
from factory import make
class Speech(Dataset):
    def __init__(self, config):
        self.config = config
        self.index = self.load_index(Path(config["folder"]))
    def load_index(self, folder):
        path = folder / "index.txt"
        if not path.exists():
            download_file("https://example.org/speech.tar.gz", folder / "speech.tar.gz")
            shutil.unpack_archive(folder / "speech.tar.gz", folder)
            path.write_text("\\n".join(map(str, sorted((folder / "clips").iterdir()))))
        return path.read_text().splitlines()
    def __len__(self):
        return len(self.index)
    def __getitem__(self, place):
        wave, _ = torchaudio.load(self.index[place])
        spectrogram = make(self.config["spectrogram"], torchaudio.transforms)
        return spectrogram(wave)[0, 0, :4], wave.mean()
"""


def test_a_class_is_found_by_its_name_in_the_module_that_the_call_gives(tmp_path) -> None:
    (tmp_path / "factory.py").write_text(FACTORY)
    (tmp_path / "speech.py").write_text(SPEECH)
    (tmp_path / "nets.py").write_text(NETS)
    make = "model = make(config['net'], nets)" + SGD
    loader = "config = json.load(open(args.arch))\n    data = make(config['data'], speech, config)"
    loader += "\n    loader = DataLoader(data, batch_size=8)"
    imports = "import json\nimport nets\nimport speech\nfrom factory import make"
    (tmp_path / "train.py").write_text(LOOP.format(make=make, imports=imports, loader=loader))
    report = migrate(tmp_path / "train.py", Options(ddp=True))
    assert (report.precision, report.distribution) == ("migrated", "migrated"), report.refusals
    text = "".join(change.after for change in report.changes)
    assert text.count("main_process_first") == 1
    assert "make(self.config" in SPEECH and "barrier" not in text
