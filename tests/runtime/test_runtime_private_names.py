"""Every private name of torch that is used is one that each release has which was looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch_names import USERS, Sources, private_names

ROOT = Path(__file__).parents[2]
TABLE = json.loads((ROOT / "tests/shared/torch_private_names.json").read_text(encoding="utf-8"))
AGAIN = "run scripts/torch_tables.py --names, as it says at its top"


@pytest.fixture(scope="module")
def used() -> dict[str, list[str]]:
    return private_names([ROOT / folder for folder in USERS])


def test_every_private_name_has_an_owner(used: dict[str, list[str]]) -> None:
    unknown = {name: places for name, places in used.items() if name.startswith("?")}
    assert unknown == {}, "say whose it is in tests/shared/torch_names.py"


def test_the_table_has_the_names_that_are_used_and_no_others(used: dict[str, list[str]]) -> None:
    assert sorted(TABLE["names"]) == sorted(used), AGAIN
    assert {"2.4", "2.7", "2.13"} < set(TABLE["releases"])


@pytest.mark.parametrize("release", sorted(TABLE["releases"]))
def test_each_release_has_them(release: str) -> None:
    assert [name for name, places in TABLE["names"].items() if places[release] is None] == []


def test_the_installed_torch_has_them(used: dict[str, list[str]]) -> None:
    """Which may be newer than all that the table knows."""
    installed = Sources(Path(torch.__file__).parents[1])
    assert [name for name in used if installed.defined_at(name) is None] == []


def test_names_are_found_in_every_form_in_which_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "uses.py").write_text(
        "import torch, os\n"
        "import torch.distributed as dist\n"
        "from torch.nn.modules.batchnorm import _BatchNorm\n"
        "from torch.utils import data\n"
        "def f(model, x, own):\n"
        "    torch._foreach_add_(x, 1)\n"
        "    torch._C.Guard()\n"
        "    dist._hidden, data.DataLoader._get_iterator, os._exit\n"
        "    getattr(model, '_join_config'), x._version, model._never_heard_of, own._kept\n"
        "class Own(torch.optim.Optimizer):\n"
        "    def __init__(self):\n"
        "        self._kept = self._buffers = 1\n"
        "        self._step_supports_amp_scaling = True\n"
    )
    found = private_names([tmp_path])
    assert set(found) == {
        "torch.nn.modules.batchnorm._BatchNorm",
        "torch._foreach_add_",
        "torch._C",
        "torch._C.Guard",
        "torch.distributed._hidden",
        "torch.utils.data.DataLoader._get_iterator",
        "torch.distributed.algorithms.join.Joinable._join_config",
        "torch._C.TensorBase._version",
        "torch.optim.adam.Adam._step_supports_amp_scaling",
        "?._never_heard_of",
    }
    assert found["torch._foreach_add_"] == ["uses.py:6"]


def test_a_name_that_torch_does_not_have_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/module.py").write_text(
        "class Other:\n    def _method(self): ...\n\n\nclass One:\n    def f(self):\n        self._set = 1\n\n\n"
        "One._put_on = 2\n_function = One._read\n"
    )
    (tmp_path / "torch/__init__.py").write_text("from .module import One\n")
    installed = Sources(tmp_path)
    expected = {
        "module.One._set": "torch/module.py:7",
        "One._set": "torch/module.py:7",
        "One._put_on": "torch/module.py:10",
        "One._method": None,
        "One._read": None,
        "module._function": "torch/module.py:11",
        "_no": None,
    }
    assert {name: installed.defined_at(f"torch.{name}") for name in expected} == expected
