"""A step with Apex that the script imports and does not run keeps its loss scaling."""

from __future__ import annotations

from amp_rules.plan.options import Options
from migrating import ENTRY, migrated

TRAINER = """\
from apex import amp


def do_train(model, optimizer, x):
    loss = model(x).sum()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()


def report(loss):
    print(loss)
"""
SCRIPT = """\
import torch
from apex import amp

from trainer import {name}

net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
net, opt = amp.initialize(net, opt, opt_level="O1")
loss = net(torch.ones(2, 4)).sum()
with amp.scale_loss(loss, opt) as scaled_loss:
    scaled_loss.backward()
opt.step()
{call}
"""


def files(name, call):
    return {ENTRY: SCRIPT.format(name=name, call=call).encode(), "trainer.py": TRAINER.encode()}


def test_a_step_that_the_script_does_not_run_keeps_apexs_interface(tmp_path):
    report, result = migrated(tmp_path, files("report", "report(loss)"), Options())
    assert "with amp.scale_loss(loss, optimizer) as scaled_loss:" in result["trainer.py"].decode()
    assert "from amp_runtime.apex import amp" in result["trainer.py"].decode()
    assert any("trainer.py:6" in note.text and "does not run itself" in note.text for note in report.notes)


def test_the_idiom_alone_is_declined(tmp_path):
    report, result = migrated(tmp_path, files("report", "report(loss)"), Options(apex="idiom"))
    assert (report.precision, result) == ("declined", files("report", "report(loss)"))


def test_a_step_that_the_script_runs_is_rewritten(tmp_path):
    report, result = migrated(tmp_path, files("do_train", "do_train(net, opt, torch.ones(2, 4))"), Options())
    assert report.precision == "migrated"
    assert "amp.scaler.scale(loss).backward()" in result["trainer.py"].decode()
    assert "apex" not in result["trainer.py"].decode()


PLAIN = """\
import torch

from trainer import {name}

net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
loss = net(torch.ones(2, 4)).sum()
loss.backward()
opt.step()
{call}
"""


def plain(name, call):
    return {ENTRY: PLAIN.format(name=name, call=call).encode(), "trainer.py": TRAINER.encode()}


def test_a_script_that_runs_nothing_of_apex_is_migrated_as_one_without(tmp_path):
    report, result = migrated(tmp_path, plain("report", "report(loss)"), Options())
    assert report.precision == "migrated"
    assert "amp.scaler.scale(loss).backward()" in result[ENTRY].decode()
    assert result["trainer.py"].decode() == TRAINER.replace("from apex", "from amp_runtime.apex")
    assert not any("AMP480" in str(note) for note in report.notes)


def test_a_script_that_may_run_the_step_keeps_apexs_interface(tmp_path):
    found = plain("report", "import trainer\nvars(trainer)[input()](net, opt, loss)")
    _, result = migrated(tmp_path, found, Options())
    assert "loss.backward()" in result[ENTRY].decode() and "scaler" not in result[ENTRY].decode()
    assert "from amp_runtime.apex import amp" in result["trainer.py"].decode()
