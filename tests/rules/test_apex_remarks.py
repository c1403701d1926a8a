"""What a script says of Apex in passing, once Apex is gone."""

from __future__ import annotations

import pytest
from amp_rules.plan.options import Options
from migrating import migrated_text

STEP = """
import argparse
import torch
import torch.nn as nn
from apex import amp

parser = argparse.ArgumentParser()
parser.add_argument("--fp16", {option})
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer)
{comment}
for data, target in torch.utils.data.DataLoader(dataset):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(data), target)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
"""


def result(tmp_path, option="default=0", comment="# the loop", **options):
    report, text = migrated_text(tmp_path, STEP.format(option=option, comment=comment), Options(**options))
    assert report.precision == "migrated"
    return text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("help='half (through NVIDIA apex), faster'", "help='half, faster'"),
        ("help='Use NVIDIA Apex AMP'", "help='Use AMP'"),
        ("help='Use Apex AMP or native AMP'", None),
        ("help='see (https://nvidia.github.io/apex/amp.html)'", None),
        ("default='half (by apex)', help='half'", None),
        ("help=f'half (by apex)'", None),
        ("help='(apex)'", None),
        ("help='capex (and apexes)'", None),
    ],
)
def test_the_help_of_an_option(tmp_path, before, after):
    assert (after or before) in result(tmp_path, option=before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# train (after apex), then save", "# train, then save"),
        ("# (apex)", None),
        ("# kept wide (https://github.com/NVIDIA/apex/issues/1)", None),
        ("# kept wide (apex #131)", None),
        ("# as apex did", None),
        ("# train (after apex)  # amp: skip[AMP408]", None),
    ],
)
def test_a_comment(tmp_path, before, after):
    assert f"{after or before}\n" in result(tmp_path, comment=before)


def test_they_stay_with_the_interface_of_apex(tmp_path):
    assert "# train (after apex)\n" in result(tmp_path, comment="# train (after apex)", apex="compat")


ABOVE = """
import torch
import torch.nn as nn
{above}
from apex import amp

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer)
for data, target in torch.utils.data.DataLoader(dataset):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(data), target)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("above", "stays"),
    [
        ("# see whether apex is faster here", False),
        ("# whether apex is faster\n# is not known", False),
        ("# slow without apex\n", True),  # of the file, not of the line below
        ("# from apex.parallel import ReduceOp", True),
        ("# apex of 2019: https://github.com/NVIDIA/apex/pull/1", True),
        ("# one\n# two\n# three\n# four: apex", True),
        ("# the next one is capex", True),
    ],
)
def test_a_comment_above_a_line_that_was_for_apex(tmp_path, above, stays):
    report, text = migrated_text(tmp_path, ABOVE.format(above=above), Options())
    assert report.precision == "migrated"
    assert all((f"{line}\n" in text) is stays for line in above.split("\n") if line)


KEPT = """import torch
from apex import amp


class Training:
    def __init__(self):
        self.amp = amp
        model = torch.nn.Linear(8, 1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.model, self.optimizer = self.amp.initialize(models=model, optimizers=optimizer)

    def step(self, x, y):
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        self.optimizer.zero_grad()
        with self.amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        self.optimizer.step()


training = Training()
for _ in range(3):
    training.step(torch.randn(4, 8).cuda(), torch.randn(4, 1).cuda())
"""


@pytest.mark.parametrize(("level", "is_full"), [('"O0"', True), ('"O1"', False), ("level", False)])
def test_a_script_that_gives_o0_alone_is_in_full_precision(level, is_full, tmp_path):
    text = STEP.format(option="default=0", comment="").replace("(model, optimizer)", f"(model, optimizer, {level})")
    text = text.replace(f", {level}", f", opt_level={level}")
    report, _ = migrated_text(tmp_path, f'level = "O0"\n{text}', Options())
    assert (report.precision, report.in_full) == ("migrated", is_full)


def test_a_level_given_by_apex_that_is_kept_in_an_attribute_is_not_o0(tmp_path):
    report, text = migrated_text(tmp_path, KEPT, Options())
    assert report.precision == "migrated"
    assert 'amp.init(opt_level="O1")' in text
    assert not report.in_full


UNDER = """import argparse

import torch
from apex import amp

parser = argparse.ArgumentParser()
parser.add_argument("--amp", type=int, default=-1)
args = parser.parse_args()


class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(8, 1).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        if args.amp >= 0:
            self.init_amp()

    def init_amp(self):
        level = "O%i" % args.amp
        self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level=level)

    def step(self, x, y):
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        self.optimizer.zero_grad()
        if args.amp == -1:
            loss.backward()
        else:
            with amp.scale_loss(loss, self.optimizer) as scaled_loss:
                scaled_loss.backward()
        self.optimizer.step()


trainer = Trainer()
for _ in range(3):
    trainer.step(torch.randn(4, 8).cuda(), torch.randn(4, 1).cuda())
"""


def test_a_level_that_is_given_under_a_condition_is_told_with_it(tmp_path):
    report, text = migrated_text(tmp_path, UNDER, Options())
    assert report.precision == "migrated" and "        if args.amp >= 0:\n" in text
    assert report.level_if == "args.amp >= 0"
    assert any(
        "overrides it where `args.amp >= 0` holds, and is not read elsewhere" in item.text for item in report.notes
    )


def test_a_level_that_is_given_where_a_condition_does_not_hold_is_told_by_what_holds(tmp_path):
    start = "        if args.amp >= 0:\n            self.init_amp()\n"
    other = "        if not args.amp:\n            print('float32')\n        else:\n            self.init_amp()\n"
    report, _ = migrated_text(tmp_path, UNDER.replace(start, other), Options())
    assert report.level_if == "args.amp"


def test_a_condition_of_the_whole_training_is_not_one_of_the_level(tmp_path):
    trained = UNDER.replace("        if args.amp >= 0:\n            self.init_amp()", "        self.init_amp()")
    trained = trained.replace("trainer = Trainer()\nfor", "if args.amp != 7:\n    trainer = Trainer()\n    for")
    trained = trained.replace("    trainer.step(", "        trainer.step(")
    report, _ = migrated_text(tmp_path, trained, Options())
    assert (report.precision, report.level_if) == ("migrated", "")
