"""Functions that nothing calls stay told apart where others are found by a text."""

from __future__ import annotations

from pathlib import Path

from amp_rules.roles.program import Program
from amp_rules.roles.uncalled import uncalled
from amp_rules.source.project import Project

_TRAINS = """
import torch
from torch import nn
{imports}

def train(model, optimizer):
    loss = model(torch.randn(8, 4)).mean()
    loss.backward()
    optimizer.step()

def older(model):
    return model

{more}

model = nn.Linear(4, 1)
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
"""


def found(tmp_path: Path, *, imports: str = "", more: str = "") -> set[str]:
    (tmp_path / "nets.py").write_text("def small():\n    return 1\n\n\ndef large():\n    return 2\n", encoding="utf-8")
    (tmp_path / "train.py").write_text(_TRAINS.format(imports=imports, more=more), encoding="utf-8")
    nodes = uncalled(Program(Project(tmp_path / "train.py")))
    return {getattr(node, "name", "") for node in nodes}


def test_a_library_that_is_asked_by_name_has_none_of_the_functions(tmp_path):
    assert "older" in found(
        tmp_path, imports="from torchvision import models", more="net = models.__dict__['resnet18']()"
    )


def test_an_object_that_is_asked_for_its_attributes_has_none(tmp_path):
    more = "class Meter:\n    def __str__(self):\n        return '{avg}'.format(**self.__dict__)\n"
    assert "older" in found(tmp_path, more=more)


def test_arguments_that_a_call_gives_have_none(tmp_path):
    more = "def settings(parser):\n    args = parser.parse_args()\n    return vars(args)\n"
    assert "older" in found(tmp_path, more=more)


def test_a_file_that_is_asked_by_name_has_its_own_functions_alone(tmp_path):
    names = found(tmp_path, imports="import nets", more="net = nets.__dict__['small']()")
    assert "older" in names and not {"small", "large"} & names


def test_where_anything_may_be_asked_nothing_is_said(tmp_path):
    assert not found(tmp_path, more="net = globals()['older'](model)")


def test_a_class_method_is_asked_of_its_class(tmp_path):
    more = "class Net:\n    @classmethod\n    def load(cls, path):\n        return torch.load(path)\n\nNet()"
    assert "load" in found(tmp_path, more=more)
    assert "load" not in found(tmp_path, more=more + "\nNet.load('net.pt')")
    assert "load" not in found(tmp_path, more=more + ".load('net.pt')")
