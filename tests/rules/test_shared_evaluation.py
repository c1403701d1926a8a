"""Which evaluations `--shard-eval` shares out, and why others stay whole on every process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import dedent, indent

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

SCRIPT = """\
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Meter:
    def __init__(self):
        self.value = self.total = self.number = 0

    def add(self, value, n=1):
        self.value = value
        self.total += value * n
        self.number += n

    @property
    def mean(self):
        return self.total / self.number


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.calls = 0

    def forward(self, x):
        return self.layer(x)

    def counted(self, x):
        self.calls += 1
        return self.layer(x)


def show(text):
    print(text)


inputs, labels = torch.randn(80, 4), torch.randint(0, 3, (80,))
loader = DataLoader(TensorDataset(inputs, labels), batch_size=8, shuffle=True)
test_loader = DataLoader(TensorDataset(inputs[:16], labels[:16]), batch_size=8)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.no_grad()
def evaluate(history=[]):
{evaluation}

for epoch in range(3):
    model.train()
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(evaluate())
"""
OPTIONS = Options(ddp=True, shard_eval=True)


def report_on(folder: Path, evaluation: str, options: Options = OPTIONS) -> tuple[str, list[str]]:
    """The migrated script, and what is noted of evaluations."""
    path = folder / "train.py"
    body = indent("model.eval()\n" + dedent(evaluation) if "eval()" not in evaluation else dedent(evaluation), "    ")
    path.write_text(SCRIPT.replace("{evaluation}", body))
    report = migrate(path, options)
    assert report.distribution == "migrated", report.refusals
    ((_, after),) = [(change.path, change.after) for change in report.changes]
    return after, [note.text for note in report.notes if note.code in ("AMP281", "AMP286")]


SHARED = {
    "a count of all samples": (
        """
        hits, seen = 0, 0
        for x, y in test_loader:
            hits += (model(x).argmax(1) == y).sum().item()
            seen = seen + len(y)
        return hits / seen
        """,
        "    hits, seen = amp.sum_evaluated(hits, seen)\n",
    ),
    "predictions in order": (
        """
        scores = []
        for x, y in test_loader:
            scores.append(model(x).numpy())
        return np.concatenate(scores)
        """,
        "    scores = amp.gather_evaluated(scores)\n",
    ),
    "an object whose mean is a property": (
        """
        losses = Meter()
        for x, y in test_loader:
            losses.add(F.cross_entropy(model(x), y).item(), len(y))
        return losses.mean
        """,
        "    losses.total, losses.number = amp.sum_evaluated(losses.total, losses.number)\n",
    ),
    "progress and time beside it": (
        """
        total, start = 0.0, time.time()
        for i, (x, y) in enumerate(test_loader):
            total += F.cross_entropy(model(x), y).item()
            if i % 10 == 0:
                print(i, total / (i + 1), time.time() - start)
                start = time.time()
        return total / len(test_loader)
        """,
        "    total = amp.sum_evaluated(total)\n",
    ),
    "counts of each class": (
        """
        hits = [0.0 for _ in range(3)]
        for x, y in test_loader:
            for truth, right in zip(y, model(x).argmax(1) == y):
                hits[truth] += right.item()
        return hits
        """,
        "    hits = amp.sum_evaluated(hits)\n",
    ),
}


@pytest.mark.parametrize("case", SHARED)
def test_what_is_understood_is_shared_out(case: str, tmp_path: Path) -> None:
    evaluation, wanted = SHARED[case]
    after, told = report_on(tmp_path, evaluation)
    assert "amp.share_evaluation(test_loader)" in after and wanted in after
    assert [text.startswith("`test_loader` is split across the processes: counts equal") for text in told] == [True]


WHOLE = {
    "an early end": (
        "hits = 0\nfor x, y in test_loader:\n    hits += len(model(x))\n    if hits > 9:\n        break",
        "break",
    ),
    "the last batch": ("for x, y in test_loader:\n    out = model(x)\nreturn out", "`out` is used after the loop"),
    "the number of rounds": (
        "total = 0\nfor i, (x, y) in enumerate(test_loader):\n    total += model(x).sum()\nreturn total / (i + 1)",
        "`i` is used after the loop",
    ),
    "an order that is kept": (
        "rows = []\nfor i, (x, y) in enumerate(test_loader):\n    rows.append((i, model(x)))\nreturn rows",
        "what `rows` is given depends on what one process has counted",
    ),
    "a state": (
        "state = torch.zeros(3)\nfor x, y in test_loader:\n    state = model(x).mean(0) + 0.5 * state\nreturn state",
        "`state` is carried from one batch to the next",
    ),
    "an extreme": (
        "best = 0\nfor x, y in test_loader:\n    best = max(best, model(x).max().item())\nreturn best",
        "`best` is carried from one batch to the next",
    ),
    "what is filled before": (
        "hits = 5\nfor x, y in test_loader:\n    hits += len(model(x))\nreturn hits",
        "it is not known what `hits` holds before the loop",
    ),
    "two loops": (
        "hits = 0\nfor _ in range(2):\n    for x, y in test_loader:\n        hits += len(model(x))\nreturn hits",
        "`hits` is not reset right before the loop",
    ),
    "a list that goes on": (
        "for x, y in test_loader:\n    history.append(model(x))\nreturn history",
        "`history` is not reset right before the loop",
    ),
    "noise": (
        "hits = 0\nfor x, y in test_loader:\n    hits += model(x + torch.randn(4)).sum()\nreturn hits",
        "`torch.randn` draws random numbers",
    ),
    "a line for each batch": (
        "for x, y in test_loader:\n    show(model(x))",
        "`show` shows each batch",
    ),
    "a method that counts": (
        "hits = 0\nfor x, y in test_loader:\n    hits += len(model.counted(x))\nreturn hits",
        "`counted` writes `self.calls`",
    ),
    "an object that is not known": (
        "import evaluator\nfor x, y in test_loader:\n    evaluator.feed(model(x))",
        "it is not known what `evaluator.feed` does",
    ),
    "a dictionary by sample": (
        "found = {}\nfor x, y in test_loader:\n    found[int(y[0])] = model(x)\nreturn found",
        "`found[int(y[0])]` is written",
    ),
    "the last value of an object that averages": (
        "m = Meter()\nfor x, y in test_loader:\n    m.add(model(x).sum().item())\nreturn m.value",
        "it is not known what of `m` is used after the loop",
    ),
    "training mode": (
        "model.eval()\nmodel.train()\nhits = 0\nfor x, y in test_loader:\n    hits += len(model(x))\nreturn hits",
        "`eval()` is not called before `model(x)`",
    ),
    "a list that others hold": (
        "rows = []\nkept = {'rows': rows}\nfor x, y in test_loader:\n    rows.append(model(x))\nreturn kept",
        "`rows` is used before the loop fills it",
    ),
}


@pytest.mark.parametrize("case", WHOLE)
def test_what_is_not_understood_stays_whole_and_is_named(case: str, tmp_path: Path) -> None:
    evaluation, why = WHOLE[case]
    after, told = report_on(tmp_path, evaluation)
    assert "evaluat" not in after.replace("evaluate(", "").replace("evaluation(history", "").replace("evaluator", "")
    (text,) = told
    assert text.startswith("every process evaluates all of `test_loader`: ") and why in text


def test_without_the_option_and_left_out_nothing_changes(tmp_path: Path) -> None:
    evaluation, _ = SHARED["a count of all samples"]
    plain = report_on(tmp_path, evaluation, Options(ddp=True))
    assert report_on(tmp_path, evaluation, replace(OPTIONS, ignore=("AMP223",))) == plain
    assert "share_evaluation" not in plain[0] and "is evaluated in full by every process" in plain[1][0]


def test_plain_torch_says_that_it_has_no_words(tmp_path: Path) -> None:
    evaluation, _ = SHARED["a count of all samples"]
    after, told = report_on(tmp_path, evaluation, replace(OPTIONS, target="torch"))
    assert after == report_on(tmp_path, evaluation, Options(ddp=True, target="torch"))[0]
    assert told == ["every process evaluates all of `test_loader`: plain PyTorch cannot express it"]
