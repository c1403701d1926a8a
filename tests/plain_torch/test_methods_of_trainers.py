"""Trainers whose forward and backward passes stand in different methods, with several models."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options
from amp_rules.plan.report import Report

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Painter:
    def __init__(self):
        self.drawer = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.judge = nn.Linear(8, 1)
        self.criterion = nn.MSELoss()
        self.draw_optimizer = torch.optim.Adam(self.drawer.parameters(), lr=1e-3)
        self.judge_optimizer = torch.optim.Adam(self.judge.parameters(), lr=1e-3)

    def take(self, sketch, picture):
        self.sketch = sketch
        self.picture = picture

    def draw(self):
        self.drawn = self.drawer(self.sketch)

    def learn_to_judge(self):
        near = self.judge(self.drawn.detach())
        real = self.judge(self.picture)
        self.judge_loss = self.criterion(near, torch.zeros_like(near)) + self.criterion(real, torch.ones_like(real))
        self.judge_loss.backward()

    def learn_to_draw(self):
        near = self.judge(self.drawn)
        self.draw_loss = self.criterion(near, torch.ones_like(near)) + self.far()
        self.draw_loss.backward()

    def far(self):
        return self.criterion(self.drawn, self.picture)

    def optimize(self):
"""

STEP = """\
self.draw()
self.judge_optimizer.zero_grad()
self.learn_to_judge()
self.judge_optimizer.step()
self.draw_optimizer.zero_grad()
self.learn_to_draw()
self.draw_optimizer.step()
"""

MAIN = """\


def main():
    loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 8)), batch_size=8, shuffle=True)
    painter = Painter()
    for epoch in range(2):
        for sketch, picture in loader:
            painter.take(sketch, picture)
            painter.optimize()


if __name__ == "__main__":
    main()
"""


def migrated(folder: Path, text: str) -> Report:
    """The report of a migration to torch, for several processes."""
    path = folder / "train.py"
    path.write_text(text)
    return migrate(path, Options(target="torch", ddp=True))


def test_a_forward_pass_that_another_method_made_is_seen_before_each_backward_pass(tmp_path: Path) -> None:
    """The method that runs both says in which order."""
    report = migrated(tmp_path, HEAD + indent(STEP, " " * 8) + MAIN)
    assert (report.precision, report.distribution) == ("migrated", "migrated"), report.refusals
    assert report.changes[0].after.count("= DistributedDataParallel(") == 2


@pytest.mark.parametrize(
    ("line", "other"),
    [
        # The first backward pass uses up the forward pass.
        ("self.learn_to_draw()\n", "self.learn_to_draw()\nself.learn_to_draw()\n"),
        # Whether it is there is not known.
        ("self.draw()\n", "if len(self.sketch) > 4:\n    self.draw()\n"),
        # It comes after.
        ("self.draw()\n", ""),
        # One forward pass for several backward passes.
        ("self.learn_to_draw()\n", "for _ in range(2):\n    self.learn_to_draw()\n"),
    ],
)
def test_a_backward_pass_that_may_have_no_forward_pass_of_its_own_is_refused(
    tmp_path: Path, line: str, other: str
) -> None:
    """DistributedDataParallel would average only the first."""
    report = migrated(tmp_path, HEAD + indent(STEP.replace(line, other), " " * 8) + MAIN)
    assert report.distribution == "declined"
    assert "DistributedDataParallel" not in "".join(change.after for change in report.changes)


def test_a_method_that_hides_what_a_loss_is_made_of_is_looked_into(tmp_path: Path) -> None:
    """Here the drawing alone is judged by how far it is, twice."""
    text = HEAD.replace(
        "self.draw_loss = self.criterion(near, torch.ones_like(near)) + self.far()\n        self.draw_loss.backward()",
        "self.draw_loss = self.far()\n        self.draw_loss.backward(retain_graph=True)\n"
        "        self.again = self.far() * 2\n        self.again.backward()",
    )
    report = migrated(tmp_path, text + indent(STEP, " " * 8) + MAIN)
    assert report.distribution == "declined"
    assert any("`self.again`" in item.message for item in report.refusals), report.refusals


@pytest.mark.parametrize("loss", ["self.draw_loss"])
def test_messages_have_the_words_of_the_script(tmp_path: Path, loss: str) -> None:
    """No scaler is in it, nor its lines in the draft."""
    step = STEP.replace("self.learn_to_draw()\n", "self.learn_to_draw()\nself.learn_to_draw()\n")
    report = migrated(tmp_path, HEAD + indent(step, " " * 8) + MAIN)
    told = " ".join(item.message for item in report.refusals)
    assert loss in told
    assert "scaler" not in told and "amp." not in told
