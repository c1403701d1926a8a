"""Where a step may leave parameters out, gradients are averaged at the step, and nowhere else because of that."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

SCRIPT = """import random
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, normed=True):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.paths = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(8, 3)
        self.normed = normed
        self.stage = 0

    def forward(self, x, choice=0, extra=None):
        x = self.body(x)
{forward}
        return self.head(x)


loader = DataLoader(TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96,))), batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
{step}
        loss.backward()
        optimizer.step()
"""
ALL = "for path in self.paths:\n    x = path(x)"
PLAIN = "loss = F.cross_entropy(model(x), y)"


def message(folder: Path, forward: str = ALL, step: str = PLAIN) -> str:
    entry = folder / "train.py"
    entry.write_text(
        SCRIPT.format(forward=textwrap.indent(forward, " " * 8), step=textwrap.indent(step, " " * 8)), encoding="utf-8"
    )
    report = migrate(entry, Options(ddp=True))
    assert (report.precision, report.distribution) == ("migrated", "migrated"), report.refusals
    (found,) = [edit.message for edit in report.edits if edit.code == "AMP108"]
    text = "".join(change.after for change in report.changes)
    assert ("delay_allreduce=True" in text) is ("averaged at the step" in found)
    return found.partition("because ")[2]


@pytest.mark.parametrize(
    "forward",
    [
        ALL,
        "for i in range(len(self.paths)):\n    x = self.paths[i](x)",
        "for i, path in enumerate(self.paths):\n    x = path(x) if i else torch.relu(path(x))",
        "if self.normed:\n    x = self.paths[0](x)\nx = self.paths[1](x) + self.paths[2](x)",
        "if x.shape[1] == 8 and x.dim() == 2:\n    x = self.paths[0](x)\nx = self.paths[-1](self.paths[1](x))",
        f"if extra is not None:\n    x = self.paths[0](extra)\n{ALL}",
        f"if isinstance(choice, int) and choice > 3:\n    return self.paths[0](x)\n{ALL}",
        f"if self.training and random.random() < 0.5:\n    x = self.drop(x)\n{ALL}",
        f"{ALL}\nif torch.rand(1).item() < 0.1:\n    x = x * 2",
    ],
)
def test_parts_that_every_step_uses_leave_the_wrapper_where_it_was(tmp_path: Path, forward: str) -> None:
    assert message(tmp_path, forward) == ""


@pytest.mark.parametrize(
    "forward",
    [
        "x = self.paths[random.randrange(3)](x)",
        "x = random.choice(self.paths)(x)",
        "if random.random() < 0.5:\n    return self.head(x)\n" + ALL,
        "for path in self.paths:\n    if self.training and torch.rand(1) < 0.2:\n        continue\n    x = path(x)",
        "near = x.mean()\nif near.item() > 0:\n    x = self.paths[0](x)",
        "for i, path in enumerate(self.paths):\n    rows = (x.argmax(1) % 3 == i).nonzero()[:, 0]\n"
        "    if len(rows) == 0:\n        continue\n    x[rows] = path(x[rows])",
        "for path in self.paths[: random.randint(1, 3)]:\n    x = path(x)",
        "x = self.paths[0](x) if bool((x > 0).any()) else self.paths[1](x)",
        "with torch.no_grad():\n    x = self.paths[0](x)",
    ],
)
def test_parts_that_are_chosen_anew_in_each_step_are_averaged_at_the_step(tmp_path: Path, forward: str) -> None:
    assert "`" in message(tmp_path, forward)


@pytest.mark.parametrize(
    ("forward", "step", "delayed"),
    [
        ("x = self.paths[choice](x)", "loss = F.cross_entropy(model(x, i % 3), y)", True),
        ("x = self.paths[choice](x)", "task = i % 3\nloss = F.cross_entropy(model(x, choice=task), y)", True),
        ("x = self.paths[choice](x)", PLAIN, False),
        ("if choice > 1:\n    x = self.paths[0](x)", "loss = F.cross_entropy(model(x, epoch), y)", True),
        ("if choice > 1:\n    x = self.paths[0](x)", "loss = F.cross_entropy(model(x, 2), y)", False),
        (
            "if extra is not None:\n    x = x + self.paths[0](extra)",
            "given = x\nif random.random() < 0.1:\n    given = None\nloss = F.cross_entropy(model(x, extra=given), y)",
            True,
        ),
        (
            "if extra is not None:\n    x = x + self.paths[0](extra)",
            "loss = F.cross_entropy(model(x, extra=x), y)",
            False,
        ),
        ("if self.stage > 1:\n    x = self.paths[0](x)", "model.stage = epoch\n" + PLAIN, True),
        ("if self.stage > 1:\n    x = self.paths[0](x)", PLAIN, False),
        (ALL, PLAIN + "\nif type(model) is Net:\n    pass", True),
        (ALL, PLAIN + "\nif type(model).__name__ == 'Net' and isinstance(model, Net):\n    pass", False),
    ],
)
def test_what_the_loop_gives_decides(tmp_path: Path, forward: str, step: str, delayed: bool) -> None:
    assert bool(message(tmp_path, forward, step)) is delayed


@pytest.mark.parametrize(
    ("returned", "step", "delayed"),
    [
        ("self.head(hidden), self.paths[1](hidden)", "a, b = model(x)\nloss = F.cross_entropy(a, y) + b.mean()", False),
        ("self.head(hidden), self.paths[1](hidden)", "a, _ = model(x)\nloss = F.cross_entropy(a, y)", True),
        ("self.head(hidden), hidden", "a, _ = model(x)\nloss = F.cross_entropy(a, y)", False),
        (
            "self.head(hidden), self.paths[1](hidden)",
            "a, b = model(x)\nloss = F.cross_entropy(a, y)\nif epoch > 1:\n    loss = loss + b.mean()",
            True,
        ),
        (
            "self.head(hidden), self.paths[1](hidden)",
            "a, b = model(x)\nloss = F.cross_entropy(a, y) if i % 2 else b.mean()",
            True,
        ),
        (
            '{"a": self.head(hidden), "b": self.paths[1](hidden)}',
            'out = model(x)\nloss = F.cross_entropy(out["a"], y)\nif epoch > 1:\n    loss += out["b"].mean()',
            True,
        ),
        (
            "self.head(hidden), self.paths[1](hidden)",
            "a, b = model(x)\nlosses = [F.cross_entropy(a, y), b.mean()]\nloss = losses[i % 2]",
            True,
        ),
    ],
)
def test_outputs_that_enter_the_loss_in_some_steps_only(
    tmp_path: Path, returned: str, step: str, delayed: bool
) -> None:
    forward = f"hidden = self.paths[0](x)\nreturn {returned}"
    assert bool(message(tmp_path, forward, step)) is delayed
