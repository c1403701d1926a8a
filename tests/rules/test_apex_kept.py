"""Scripts that keep Apex's interface: what is said of several processes is true of them."""

from __future__ import annotations

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

HALF = """
import torch
from apex.optimizers import FP16_Optimizer, FusedAdam
from torch import nn
from torch.utils.data import DataLoader
loader = DataLoader(torch.randn(64, 4), batch_size=8)
model = nn.Linear(4, 1).cuda().half()
{wrapped}
optimizer = FP16_Optimizer(FusedAdam(model.parameters(), max_grad_norm=1.0), dynamic_loss_scale=True)
for x in loader:
    optimizer.zero_grad()
    optimizer.backward(model(x.cuda().half()).float().mean())
    optimizer.step()
print(FP16_Optimizer)
"""


@pytest.mark.parametrize(("way", "advice"), [("compat", "without `--apex compat`"), ("auto", "that AMP480 names")])
@pytest.mark.parametrize("wrapped", ["", "model = nn.DataParallel(model)"])
def test_the_advice_is_no_wrapper(tmp_path, way, advice, wrapped):
    entry = tmp_path / "train.py"
    entry.write_text(HALF.format(wrapped=wrapped))
    report = migrate(entry, Options(apex=way, ddp=True))
    reason = next(item for item in report.refusals if item.unit == "distribution")
    assert ("DataParallel` spreads" in reason.message) is bool(wrapped)
    assert advice in reason.recipe and "Distributed" not in reason.recipe


LOST = """
import torch
from apex import {names}
from torch import nn

model = nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer)
loss = model(torch.ones(2, 4).cuda()).mean()
with amp.scale_loss(loss, optimizer) as scaled_loss:
    scaled_loss.backward()
{more}
optimizer.step()
"""


@pytest.mark.parametrize(
    ("names", "more", "lines"),
    [
        ("amp", "print(amp.lists.functional_overrides)", [12]),
        ("amp, pyprof", "pyprof.nvtx.init()", [12, 3]),
    ],
)
def test_where_neither_way_goes_the_other_is_not_advised_and_a_place_is_told_once(tmp_path, names, more, lines):
    entry = tmp_path / "train.py"
    entry.write_text(LOST.format(names=names, more=more))
    report = migrate(entry, Options())
    assert report.precision == "declined"
    assert [item.span.start.line for item in report.refusals] == lines
    assert not any("compat" in item.recipe for item in report.refusals)
    alone = migrate(entry, Options(apex="idiom"))
    assert "--apex compat" in alone.refusals[0].recipe


def test_the_reason_for_a_helper_of_half_precision_is_what_stood_in_the_way(tmp_path):
    entry = tmp_path / "train.py"
    entry.write_text(HALF.format(wrapped=""))
    told = " ".join(note.text for note in migrate(entry, Options()).notes if note.code == "AMP480")
    assert "FP16_Optimizer" in told and "in the idiom" not in told
    entry.write_text(HALF.format(wrapped="").replace("print(FP16_Optimizer)", "print(optimizer.overflow)"))
    told = " ".join(note.text for note in migrate(entry, Options()).notes if note.code == "AMP480")
    assert "overflow" in told and "in the idiom" not in told


def test_a_helper_that_makes_no_trained_model_half_has_a_reason_of_its_own(tmp_path):
    entry = tmp_path / "train.py"
    entry.write_text(
        "from apex.fp16_utils import network_to_half\nfrom net import Net\n\nmodel = network_to_half(Net())\n"
    )
    report = migrate(entry, Options(apex="idiom"))
    assert any("no model was found that the script makes half and trains" in item.message for item in report.refusals)


DERIVED = """
import torch
from apex import amp
from filelock import FileLock
from torch import nn
from transformers import Trainer


class LoggingTrainer(Trainer):
    def train(self):
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        model, optimizer = amp.initialize(self.model, optimizer, opt_level="O1")
        for inputs in self.get_train_dataloader():
            print(self.training_step(model, inputs).item())
            optimizer.step()


with FileLock("lock"):
    LoggingTrainer(model=nn.Linear(8, 2), train_dataset=torch.randn(64, 8)).train()
"""


def test_a_step_of_a_framework_is_named_by_its_class(tmp_path):
    entry = tmp_path / "train.py"
    entry.write_text(DERIVED)
    (reason,) = [item for item in migrate(entry, Options()).refusals if item.code == "AMP490"]
    assert reason.span.start.line == 9 and "`transformers.Trainer`" in reason.message


LEFT = """
import torch
from torch import nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset
from transformers import is_apex_available

if is_apex_available():
    from apex import amp

options = {"apex": False}
model = nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler("cuda")
for x, y in DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,))), batch_size=8, shuffle=True):
    with autocast("cuda"):
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    if options["apex"]:
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


def test_an_import_that_is_still_read_stays(tmp_path):
    entry = tmp_path / "train.py"
    entry.write_text(LEFT)
    report = migrate(entry, Options())
    assert "AMP414" not in {edit.code for edit in report.edits}
    assert all("amp" in change.after for change in report.changes) and report.precision != "already"


def test_a_copy_of_apex_in_the_project_needs_no_extension_any_more(tmp_path):
    entry = tmp_path / "train.py"
    entry.write_text(LOST.format(names="amp", more="from apex.optimizers import FusedAdam\nprint(FusedAdam)"))
    for name, text in {
        "__init__": "from . import amp",
        "amp": "def initialize(*given): ...",
        "optimizers": OWN,
    }.items():
        (tmp_path / "apex").mkdir(exist_ok=True)
        (tmp_path / "apex" / f"{name}.py").write_text(text)
    (tmp_path / "own.py").write_text(OWN)
    assert not [note for note in migrate(entry, Options()).notes if note.code == "AMP480"]
    entry.write_text("import own\n" + entry.read_text())
    (note,) = [note for note in migrate(entry, Options()).notes if note.code == "AMP480"]
    assert note.path.name == "own.py"


def test_packages_of_apex_in_the_project_are_apex_without_its_own_init(tmp_path):
    entry = tmp_path / "train.py"
    entry.write_text(STEP)
    (tmp_path / "apex" / "amp").mkdir(parents=True)
    copied = tmp_path / "apex" / "amp" / "__init__.py"
    copied.write_text("def initialize(model, optimizer, opt_level):\n    for m in [model]:\n        m.half()\n")
    report = migrate(entry, Options())
    assert report.precision == "migrated" and [change.path for change in report.changes] == [entry]
    assert "AMP404" in {edit.code for edit in report.edits}


STEP = """
import torch
from apex import amp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
for x, y in DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,))), batch_size=8, shuffle=True):
    loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
"""

OWN = """
import fused_adam_cuda


class FusedAdam:
    kernel = fused_adam_cuda
"""
