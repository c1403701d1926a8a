"""Names that a file binds in a place that is easily missed, and those that it does not."""

from __future__ import annotations

import pytest
from amp_rules.plan.undefined_names import notes
from amp_rules.roles.program import Program
from amp_rules.source.project import Project

SCRIPT = """
import numpy as np
import torch
from torch import nn


def set_up():
    global counter
    counter = 3


class Trainer:
    IN_CLASS

    def train(self, x):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = model(x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            IN_LOOP


Trainer().train(torch.randn(8, 4))
"""


def names(tmp_path, in_class="pass", in_loop="pass"):
    """What the notes on a script say, shortened to the names."""
    file = tmp_path / "train.py"
    file.write_text(SCRIPT.replace("IN_CLASS", in_class).replace("IN_LOOP", in_loop))
    return [note.text.split("`")[1] for note in notes(Program(Project(file)))]


@pytest.mark.parametrize(
    "text",
    [
        "size = 4; numbers = [i * size for i in range(size)]",
        "table = {key: value for key, value in zip(range(3), range(3))}",
        "rate = lambda self, step: step + 1",
    ],
)
def test_what_a_class_binds_is_known(text, tmp_path):
    assert names(tmp_path, in_class=text) == []


@pytest.mark.parametrize(
    "text",
    [
        "print(counter, __name__, __class__)",
        "print({k: [v for v in row] for k, row in {}.items()})",
        "print(n) if (n := len(x)) > 3 else None",
        "match x:\n                case {'a': value, **others}: print(value, others)\n"
        "                case [first, *rest]: print(first, rest)",
        "try: pass\n            except ValueError as error: print(error)",
        "with open('log') as stream: print(stream)",
    ],
)
def test_what_a_function_binds_is_known(text, tmp_path):
    assert names(tmp_path, in_loop=text) == []


def test_what_nothing_binds_is_told_once(tmp_path):
    assert names(tmp_path, in_loop="print(criterion, numpy, criterion)") == ["criterion"]
