"""Which values differ between ranks, and why."""

from __future__ import annotations

import ast

import pytest
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.options import Options
from amp_rules.plan.precision import plan
from amp_rules.ranks.origins import Kind
from amp_rules.roles.program import Program
from amp_rules.source.project import Project

HEAD = """
import random, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(80, 4), torch.randn(80, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
validation = DataLoader(data, batch_size=8)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []

class Meter:
    def __init__(self):
        self.total = 0.0
        self.count = 0

    def update(self, value):
        self.total += value
        self.count += 1

    @property
    def mean(self):
        return self.total / self.count

def evaluate(batches):
    meter = Meter()
    for x, y in batches:
        meter.update(nn.functional.mse_loss(model(x), y).item())
    return meter.mean

"""
LOOP = """
for epoch in range(3):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        history.append(loss.item())
        IN_STEP
    AFTER_EPOCH
"""


def kinds(tmp_path, *, step="pass", after="pass", more=""):
    """Why the arguments of ``ask(...)`` differ between ranks, one set of kinds for each call."""
    after = after.replace("\n", "\n    ")
    text = HEAD + more + LOOP.replace("IN_STEP", step.replace("\n", "\n        ")).replace("AFTER_EPOCH", after)
    file = tmp_path / "train.py"
    file.write_text(text)
    program = Program(Project(file))
    precision = plan(program)
    assert precision is not None
    ranks = Distribution(program, precision, Options(ddp=True)).ranks
    return [
        {origin.kind for origin in ranks.origins(call.args[0])}
        for call, _, _ in program.calls()
        if isinstance(call.func, ast.Name) and call.func.id == "ask"
    ]


@pytest.mark.parametrize(
    "asked",
    ["loss", "loss.item()", "x", "model(x)", "float(loss) + 1", "str(loss)", "[loss.item()]", "loss < 1", "total",
     "{'loss': loss.item()}", "f'{loss:.3f}'", "unknown(loss)", "max(history)", "history[-1]"],
)  # fmt: skip
def test_what_comes_from_a_batch_is_local(asked, tmp_path):
    assert kinds(tmp_path, step=f"ask({asked})") == [{Kind.BATCH}]


@pytest.mark.parametrize(
    "asked",
    ["epoch", "len(history)", "x.size(0)", "x.shape", "len(loader)", "len(loader.dataset)", "optimizer", "model",
     "optimizer.param_groups[0]['lr']", "loss is None", "isinstance(loss, float)", "unknown(epoch)",
     "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"],
)  # fmt: skip
def test_what_all_have_alike_is_replicated(asked, tmp_path):
    assert kinds(tmp_path, step=f"ask({asked})") == [set()]


def test_evaluation_on_a_loader_that_is_not_shared_out_is_replicated(tmp_path):
    """The training loader, too, is evaluated as a whole: only the loop that trains has a share of it."""
    after = "ask(evaluate(validation))\nask(evaluate(loader))\nask(loss)"
    assert kinds(tmp_path, after=after) == [set(), set(), {Kind.BATCH}]


def test_a_loader_is_no_array(tmp_path):
    more = """
def labels_of(given):
    return np.array(given) if isinstance(given, np.ndarray) else np.array(given.dataset.tensors)
"""
    (found,) = kinds(tmp_path, more=more, after="ask(labels_of(loader))")
    assert found == set()


def test_a_name_holds_what_was_assigned_last(tmp_path):
    after = "ask(loss)\nfor x, y in validation:\n    loss = model(x).mean()\n    ask(loss)"
    assert kinds(tmp_path, after=after) == [{Kind.BATCH}, set()]


def test_a_value_of_an_earlier_round_is_known_behind_a_continue(tmp_path):
    more = (
        "def follow(value):\n    for index in range(4):\n        if index % 2 == 0:\n            last = value\n"
        "            continue\n        ask(last)\n\n\n"
    )
    assert kinds(tmp_path, more=more, step="follow(loss)") == [{Kind.BATCH}]


def test_what_a_first_round_does_not_have_yet_is_not_of_another_call(tmp_path):
    """Each of them reads the variable on a path that only later rounds take."""
    more = (
        "def summed(value):\n    for index in range(4):\n        if index == 0:\n            total = value\n"
        "        else:\n            total = total + value\n    return total\n\n\n"
    )
    after = "ask(summed(0.5))"
    assert kinds(tmp_path, more=more, step="ask(summed(loss))", after=after) == [{Kind.BATCH}, set()]


@pytest.mark.parametrize(
    ("made", "local"),
    [
        ("torch.stack(rows)", False),
        ("torch.stack(rows, 1)", True),
        ("torch.cat(rows)", True),
        ("torch.tensor([len(row) for row in rows])", False),
        ("torch.tensor([len(row) for row in rows if len(row) > 3])", True),
        ("torch.zeros(len(rows), max(len(row) for row in rows))", False),
        ("torch.zeros(max(len(row) for row in rows), len(rows))", True),
        ("torch.zeros((len(rows), 4)).long().unsqueeze(1)", False),
        ("torch.stack(rows).unsqueeze(0)", True),
        ("torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)", False),
        ("torch.nn.utils.rnn.pad_sequence(rows)", True),
        ("rows", False),
        ("[row for row in rows if row.sum() > 0]", True),
    ],
)
def test_how_many_samples_a_collated_batch_has_is_known(made, local, tmp_path):
    more = f"def collate(samples):\n    rows, labels = zip(*samples)\n    return {made}, torch.stack(labels)\n\n\n"
    more += "collated = DataLoader(data, batch_size=4, shuffle=True, collate_fn=collate)\n"
    step = "pass\nfor a, b in collated:\n    model(a).mean().backward()\n    optimizer.step()\n    "
    step += "ask(len(a))\n    ask(len(b))"
    found = kinds(tmp_path, more=more, step=step)
    assert found == [{Kind.BATCH} if local else set(), set()]


def test_two_objects_of_a_class_are_two(tmp_path):
    more = "trained, evaluated = Meter(), Meter()\n"
    after = "evaluated.update(1.0)\nask(evaluated.mean)\nask(trained.mean)"
    assert kinds(tmp_path, more=more, step="trained.update(loss.item())", after=after) == [set(), {Kind.BATCH}]


@pytest.mark.parametrize(
    "step",
    [
        "flag = True if loss > 1 else False\nask(flag)",
        "count = 0\nif loss > 1:\n    count += 1\nask(count)",
        "if loss > 1:\n    continue\nafter = 1\nask(after)",
        "found = [v for v in (1, 2) if v > loss]\nask(len(found))",
        "n = 0\nwhile n < loss:\n    n += 1\nask(n)",
        "try:\n    n = 0\n    check(loss)\nexcept ValueError:\n    n = 1\nask(n)",
    ],
)
def test_what_is_assigned_under_a_local_condition_is_local(step, tmp_path):
    more = "def check(value):\n    if value > 1:\n        raise ValueError\n\n"
    assert kinds(tmp_path, step=step, more=more) == [{Kind.BATCH}]


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ("time.time()", Kind.CLOCK),
        ('np.datetime64("now")', Kind.CLOCK),
        ("np.random.default_rng().normal()", Kind.GENERATOR),
        ("random.Random().random()", Kind.GENERATOR),
        ("np.datetime64('2020-01-01')", None),
        ("__import__('os').name", None),
        ("np.random.default_rng(0).normal()", None),
        ("random.random()", None),
        ("torch.randn(3)", None),
    ],
)
def test_sources_between_two_passes(asked, kind, tmp_path):
    assert kinds(tmp_path, after=f"ask({asked})") == [{kind} - {None}]


@pytest.mark.parametrize("asked", ["random.random()", "torch.randn(3)", "x.clone().uniform_()", "np.random.rand()"])
def test_draws_in_a_step_are_each_ranks_own(asked, tmp_path):
    (found,) = kinds(tmp_path, step=f"ask({asked})")
    assert Kind.DRAW in found


@pytest.mark.parametrize(
    ("step", "kinds_of"),
    [
        ("log = {'loss': loss.item()}\nask('loss' in log)", set()),
        ("log = {'loss': loss.item()}\nfor key in log:\n    ask(key)", set()),
        ("log = {}\nlog.update({'loss': loss.item()})\nask('loss' in log)", set()),
        ("log = {}\nlog.update(**{'loss': loss.item()})\nask('loss' in log)", set()),
        ("log = {'loss': loss.item()}\nfor value in log.values():\n    ask(value)", {Kind.BATCH}),
        ("log = {}\nif loss > 1:\n    log['best'] = 1\nask('best' in log)", {Kind.BATCH}),
        ("log = {}\nlog[loss.item()] = 1\nfor key in log:\n    ask(key)", {Kind.BATCH}),
        ("log = {}\nlog.setdefault(loss.item(), 1)\nask(1.0 in log)", {Kind.BATCH}),
        ("log = dict(zip([loss.item()], [1]))\nask(1.0 in log)", {Kind.BATCH}),
        ("log = {**dict(zip([loss.item()], [1]))}\nask(1.0 in log)", {Kind.BATCH}),
        ("log = {'epoch': 1}\nlog.update(dict(zip([loss.item()], [1])))\nask(1.0 in log)", {Kind.BATCH}),
        ("log = {value.item(): 1 for value in [loss]}\nask(1.0 in log)", {Kind.BATCH}),
        ("ask(1.0 in [loss.item()])", {Kind.BATCH}),
    ],
)
def test_the_keys_of_a_dictionary_are_not_what_stands_under_them(step, kinds_of, tmp_path):
    assert kinds(tmp_path, step=step) == [kinds_of]


def test_a_loop_over_phases_is_gone_through_one_by_one(tmp_path):
    after = """
loaders = {"train": loader, "val": validation}
for phase in ("train", "val"):
    loss = 0.0
    for x, y in loaders[phase]:
        loss = model(x).mean()
    if phase == "val":
        ask(loss)
"""
    assert kinds(tmp_path, after=after) == [set()]


def test_options_do_not_share_what_one_of_them_is(tmp_path):
    more = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--save", default=str(time.time()))
parser.add_argument("--epochs", default=3)
args = parser.parse_args()
"""
    assert kinds(tmp_path, more=more, after="ask(args.epochs)\nask(args.save)") == [set(), {Kind.CLOCK}]


def test_a_call_is_none_of_a_function_that_needs_more(tmp_path):
    more = """
import sys

def shifted(x, by):
    return x + by

def same(x):
    return x

change = shifted if "--shift" in sys.argv else same
"""
    assert kinds(tmp_path, more=more, step="shifted(1, loss.item())", after="ask(change(1))") == [set()]


KEEPING = """
class Keeping(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.features = nn.Linear(4, 4), nn.Linear(4, 1), None

    def forward(self, x):
        self.features = self.body(x)
        if self.training:
            self.features = self.features.relu()
        return self.head(self.features)

net = Keeping()
"""


def test_what_a_method_gives_an_attribute_last_is_what_it_reads(tmp_path):
    after = "for x, y in validation:\n    ask(net(x))\nask(net.features)"
    asked = kinds(tmp_path, more=KEEPING, step="ask(net(x))", after=after)
    assert asked == [{Kind.BATCH}, set(), {Kind.BATCH}]


@pytest.mark.parametrize(
    "more",
    ["def disturb(): net.features = history[-1]\n", "setattr(net, name, history[-1])\n",
     "def disturb(): setattr(net, 'features', history[-1])\n"],
)  # fmt: skip
def test_an_attribute_that_others_assign_holds_what_any_did(more, tmp_path):
    after = "for x, y in validation:\n    ask(net(x))"
    assert kinds(tmp_path, more=KEEPING + more, step="net(x)", after=after) == [{Kind.BATCH}]


def test_an_element_of_an_attribute_may_be_one_of_numbers_in_a_row(tmp_path):
    more = """
class Sums:
    def __init__(self):
        self.sums = [0.0] * 2

    def update(self, value):
        self.sums[0] += value

sums = Sums()
"""
    asked = kinds(tmp_path, more=more, step="sums.update(loss.item())", after="ask(sums.sums[0])")
    assert asked == [{Kind.BATCH}]
