"""What files use of the runtime."""

from __future__ import annotations

import pytest
from amp_migrate.vendoring.uses import uses_of

HEAD = "import amp_runtime as amp\n"
ALL = {"O0", "O1", "O2", "O3"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("amp.init()\nmodel = amp.prepare_model(model)", {"init", "prepare_model"}),
        ("amp.optim.SGD(p)\namp.optim.Adam", {"optim.SGD", "optim.Adam"}),
        ("make(amp.optim)", {"optim.*"}),
        ("amp.scaler.scale(loss).backward()", {"scaler.scale"}),
        ("step(loss, amp.scaler)", {"scaler.*"}),
        ("getattr(amp, name)", {"*"}),
        ("from amp_runtime import EMA as Average, scaler\nscaler.step(o)", {"EMA", "scaler", "scaler.step"}),
        ("from amp_runtime import *", {"*"}),
        ("from amp_runtime.optim import LAMB", {"optim.LAMB"}),
        ("import amp_runtime.apex.amp", {"*"}),
        ("from amp_runtime.apex import amp as a", {"*"}),
        ("def broken(:", {"*"}),
        ("other.scaler.step(o)", set()),
    ],
)
def test_names(text, names):
    assert uses_of([HEAD + text]).names >= names
    assert ("*" in uses_of([HEAD + text]).names) == ("*" in names)


def test_a_file_that_does_not_name_the_package_uses_nothing():
    assert not uses_of(["import torch\namp.EMA\n"])


@pytest.mark.parametrize(
    ("call", "levels"),
    [
        ("amp.init()", {"O1"}),
        ('amp.init(opt_level="O2")', {"O2"}),
        ('amp.init("O0")', {"O0"}),
        ("amp.init(opt_level=args.opt_level)", ALL),
        ("amp.init(**settings)", ALL),
        ("amp.init(*settings)", ALL),
        ("amp.shutdown()", set()),
    ],
)
def test_levels(call, levels):
    assert uses_of([HEAD + call]).levels == levels


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("amp.prepare_model(m, delay_allreduce=True)", "delay_allreduce"),
        ("amp.init(**settings)", "**"),
        ("torch.autograd.grad(y, x, create_graph=True)", "create_graph"),
        ("amp.scaler.step(optimizer, closure)", "closure"),
        ("amp.scaler.step(optimizer, closure=again)", "closure"),
        ("amp.scaler.step(*both)", "closure"),
        ("best = copy.deepcopy(model)", "deepcopy"),
        ("from copy import deepcopy as dc", "deepcopy"),
    ],
)
def test_words(text, word):
    assert word in uses_of([HEAD + text]).words


@pytest.mark.parametrize("text", ["amp.scaler.step(optimizer)", "function(**settings)", "optimizer.step(closure)"])
def test_what_says_nothing(text):
    assert uses_of([HEAD + text]).words <= {"closure"} - {"closure"}
