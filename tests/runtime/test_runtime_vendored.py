"""Copies of the runtime beside a script train as the package does, and say what they do without."""

from __future__ import annotations

import shutil

import pytest
from vendored import copied, used, write

pytestmark = pytest.mark.heavy

SCRIPT = """
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import amp_runtime as amp

assert (amp.__file__.startswith(os.environ["CHECK_DIR"])) == bool(os.environ.get("VENDORED")), amp.__file__
amp.init(opt_level="O1", ddp=True)
torch.manual_seed(0)
data = TensorDataset(torch.randn(44, 8), torch.randint(0, 3, (44,)))
loader = amp.prepare_loader(DataLoader(data, batch_size=8, shuffle=True))
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)).to(amp.device())
model = amp.prepare_model(model)
optimizer = amp.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        with amp.autocast():
            loss = F.cross_entropy(model(x), y)
        amp.scaler.scale(loss).backward()
        amp.scaler.step(optimizer)
        amp.scaler.update()
    if amp.is_main_process():
        print(epoch, loss.item())
if amp.is_main_process():
    print([tensor.double().sum().item() for tensor in amp.unwrap(model).state_dict().values()])
exec(os.environ.get("MORE", ""))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One with the script, and copies for O1 and for all levels that a test puts beside it."""
    folder = tmp_path_factory.mktemp("vendored")
    (folder / "work").mkdir()
    (folder / "work/train.py").write_text(SCRIPT)
    write(copied(used([SCRIPT])), folder / "small")
    write(copied(used([SCRIPT], "O2")), folder / "half")
    return folder


@pytest.fixture
def run(folder, launcher):
    """Run the script with a copy beside it, or with none, and return how it ended."""

    def call(copy: str, ranks: int = 1, **environment: str):
        place = folder / "work/amp_runtime"
        shutil.rmtree(place, ignore_errors=True)
        if copy:
            shutil.copytree(folder / copy / "amp_runtime", place)
        environment |= {"VENDORED": copy, "PYTHONDONTWRITEBYTECODE": "1"}
        start = launcher.alone if ranks == 1 else launcher.together
        return start(folder / "work/train.py", folder / "work", **environment)

    return call


@pytest.mark.parametrize(
    ("copy", "ranks", "level", "dtype"),
    [
        ("small", 1, "O0", "auto"),
        ("small", 1, "O1", "bf16"),
        ("small", 1, "O1", "fp16"),
        ("small", 2, "O0", "auto"),
        ("small", 2, "O1", "fp16"),
        ("half", 1, "O2", "bf16"),
        ("half", 1, "O3", "bf16"),
        ("half", 2, "O2", "bf16"),
    ],
)
def test_a_copy_trains_as_the_package_does(run, copy, ranks, level, dtype):
    with_copy = run(copy, ranks, AMP_OPT_LEVEL=level, AMP_DTYPE=dtype)
    assert with_copy.returncode == 0, with_copy.stderr
    package = run("", ranks, AMP_OPT_LEVEL=level, AMP_DTYPE=dtype)
    assert package.returncode == 0, package.stderr
    assert with_copy.stdout == package.stdout
    assert "[" in with_copy.stdout


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            {"AMP_OPT_LEVEL": "O2"},
            "what O2 and O3 need is left out of this copy of amp_runtime, which is for O0 and O1; "
            "`amp-migrate --vendor --opt-level O2 -w train.py` adds it",
        ),
        ({"AMP_OPT_LEVEL": "O3"}, "what O2 and O3 need is left out"),
        ({"AMP_CHECK": "every"}, "AMP_CHECK=every is left out of copies"),
        ({"MORE": "amp.EMA"}, "amp.EMA is left out of this copy of amp_runtime, which is for O0 and O1; `amp-migrate"),
        ({"MORE": "amp.optim.Adam"}, "amp.optim.Adam is left out"),
        ({"MORE": "amp.scaler.state_dict()", "AMP_OPT_LEVEL": "O0"}, "amp.scaler.state_dict is left out"),
        (
            {"MORE": "amp.init(combine_grad=True)\namp.scaler.step(optimizer)"},
            "amp.init(combine_grad=True) is left out",
        ),
        ({"MORE": "amp.init(custom_white_list=['exp'])"}, "custom_white_list and custom_black_list is left out"),
        ({"MORE": "amp.init(cast_policy='apex')\nwith amp.autocast(): model(x)"}, "cast_policy='apex' is left out"),
        ({"MORE": "amp.scaler.step(optimizer, lambda: loss)"}, "amp.scaler.step(optimizer, closure) is left out"),
        ({"MORE": "amp.scaler.locate_overflow(print)"}, "amp.scaler.locate_overflow is left out"),
        ({"MORE": "amp.scaler.unscale_gradients(loss)"}, "amp.scaler.unscale_gradients is left out"),
    ],
)
def test_what_a_copy_does_without_is_refused_with_what_adds_it(run, environment, said):
    done = run("small", **({"AMP_OPT_LEVEL": "O1"} | environment))
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("for _ in amp.prepare_loader(DataLoader(data), uneven='join'): pass", "uneven='join' is left out"),
        ("amp.prepare_model(nn.Linear(2, 2), delay_allreduce=True)", "delay_allreduce=True"),
        ("amp.prepare_model(nn.Linear(2, 2), message_size=1000)", "message_size"),
        (
            "x.requires_grad_(); g, = torch.autograd.grad(model(x).sum(), x, create_graph=True)",
            "the gradient of a gradient through synchronised batch norm is left out",
        ),
    ],
)
def test_so_it_is_in_two_processes(run, more, said):
    done = run("small", 2, AMP_OPT_LEVEL="O0", MORE=more)
    assert done.returncode != 0
    assert said in done.stderr


def test_names_that_there_are_not_are_no_attributes_of_a_copy_either(run):
    done = run("small", MORE="print(hasattr(amp, 'EMA'), hasattr(amp, '__wrapped__'), amp.optim.RMSprop.__name__)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False False RMSprop"
