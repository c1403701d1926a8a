"""Reasons for declining are collected and told together."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined, Reasons
from amp_rules.plan.options import Options
from amp_rules.plan.report import Refusal

FOLDER = Path(__file__).parents[2] / "fixtures" / "declines" / "AMP191"


def declined(message: str, *, already: bool = False) -> Declined:
    rule = declining.CLOSURE
    return Declined(Refusal(Path("a.py"), None, rule.code, rule.name, rule.unit, message, "mend it"), already=already)


def test_nothing_found_declines_nothing():
    reasons = Reasons()
    with reasons.collecting():
        pass
    reasons.extend([])
    reasons.decline()


def test_all_reasons_are_raised_in_the_order_in_which_they_were_found_each_once():
    reasons = Reasons()
    with reasons.collecting():
        raise declined("one")
    reasons.extend([declined("two"), declined("one"), declined("three", already=True)])
    with pytest.raises(Declined) as caught:
        reasons.decline()
    assert [refusal.message for refusal in caught.value.refusals] == ["one", "two", "three"]
    assert caught.value.refusal.message == "one"
    assert not caught.value.already, "the first decides"


def test_other_errors_are_not_collected():
    reasons = Reasons()
    with pytest.raises(ZeroDivisionError), reasons.collecting():
        raise ZeroDivisionError


def test_what_settles_the_question_is_told_alone():
    with pytest.raises(Declined) as caught:
        declining.decline_at_first(declined(message) for message in ("one", "two"))
    assert [refusal.message for refusal in caught.value.refusals] == ["one"]
    declining.decline_at_first([])


SEVERAL = """\
import torch
import half_written

model = torch.nn.Linear(4, 1)
other = torch.nn.Linear(4, 1)
model.weight.register_hook(lambda grad: grad.clamp(-1, 1))
other.weight.register_hook(lambda grad: grad.clamp(-2, 2))
optimizer = torch.optim.LBFGS(model.parameters())
for x in torch.ones(3, 4):
    def closure():
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
"""


def test_a_step_is_declined_for_all_that_must_be_mended(tmp_path):
    (tmp_path / "half_written.py").write_text("def (\n")
    entry = tmp_path / "train.py"
    entry.write_text(SEVERAL)
    report = migrate(entry, Options())
    found = [(item.code, item.span.start.line) for item in report.refusals if item.span is not None]
    assert found == [("AMP195", 6), ("AMP195", 7), ("AMP198", 2), ("AMP191", 16)]
    assert (report.precision, report.changes) == ("declined", ())


UNKNOWN = """\
import torch


def train(model, stepper):
    model.weight.register_hook(lambda grad: grad.clamp(-1, 1))
    for x in torch.ones(3, 4):
        loss = model(x).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step()


train(torch.nn.Linear(4, 1), __import__("elsewhere").stepper)
"""


def test_reasons_that_follow_from_another_are_not_told(tmp_path):
    entry = tmp_path / "train.py"
    entry.write_text(UNKNOWN)
    report = migrate(entry, Options())
    found = [(item.code, item.span.start.line) for item in report.refusals if item.span is not None]
    assert found == [("AMP195", 5), ("AMP193", 10)], "no word of the model, nor of the clipping"


QUEUED = """\
import queue

import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = queue.Queue()
{given}
for step in range(10):
    optimizer.zero_grad()
    loss = model(batches.get()).sum()
    loss.backward()
    optimizer.step()
for x in DataLoader(torch.ones(8, 4)):
    print(model(x))
"""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("for x in DataLoader(torch.ones(16, 4), batch_size=4):\n    batches.put(x)", "is not followed"),
        ("for x in torch.ones(16, 4).split(4):\n    batches.put(x)", "no DataLoader feeds `loss`"),
    ],
)
def test_a_loader_that_may_feed_a_step_is_told_as_such(tmp_path, given, told):
    entry = tmp_path / "train.py"
    entry.write_text(QUEUED.format(given=given))
    report = migrate(entry, Options(ddp=True))
    (found,) = (item.message for item in report.refusals)
    assert told in found


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("AMP291/loader_given_from_elsewhere.py", "`train_batches`, which `fit` (train.py:5) is given by a script"),
        ("AMP196/trainer_made_elsewhere.py", "`self.optimizer` is not known, which `Trainer` (train.py:6) is given by"),
        ("AMP196/optimizer_of_a_grid.py", 'makes (train.py:17), and what `chosen["optimizer"]` holds is not known'),
        ("AMP196/parameters_in_settings.py", '(train.py:22) takes the parameters out of `self.settings["rates"]`, and'),
    ],
)
def test_what_another_script_gives_is_told_as_such(tmp_path, script, told):
    entry = tmp_path / "train.py"
    entry.write_text((FOLDER.parent / script).read_text())
    report = migrate(entry, Options(ddp=True))
    assert any(told in item.message for item in report.refusals)


BRANCHES = """\
import sys

import torch
from apex import amp
from torch.utils.data import DataLoader

HALF = "--half" in sys.argv
LONG = "--long" in sys.argv


def train(model, optimizer):
    for x in DataLoader(torch.ones(16, 4), batch_size=4, shuffle=True):
        loss = model(x).mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def make():
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


if {test}:
    plain, its_optimizer = make()
    train(plain, its_optimizer)
else:
    model, optimizer = make()
    half, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    train(half, optimizer)
"""


@pytest.mark.parametrize(
    ("test", "told"),
    [("not HALF", "HALF"), ("LONG", "not LONG"), ("LONG and HALF", "not (LONG and HALF)")],
)
def test_a_model_that_is_prepared_in_an_else_branch_is_told_by_the_opposite_of_the_test(tmp_path, test, told):
    entry = tmp_path / "train.py"
    entry.write_text(BRANCHES.format(test=test))
    report = migrate(entry, Options(ddp=True))
    (found,) = (item for item in report.refusals if item.code == "AMP293")
    assert f"only where `{told}` holds" in found.message
    assert f"enabled={told})`" in found.recipe


@pytest.mark.parametrize(("name", "is_once"), [("evaluated_once", True), ("lbfgs", False)])
def test_a_closure_that_is_evaluated_once_may_be_called_above_the_step(name, is_once):
    refusals = migrate(FOLDER / f"{name}.py", Options()).refusals
    found = ["then `optimizer.step()` computes the same" in item.recipe for item in refusals if item.code == "AMP191"]
    assert found == [is_once]
