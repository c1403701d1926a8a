"""Where ``--quantize qat`` prepares a model for int8, and why it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

HEAD = """
import copy
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(F.relu(self.body(x)))

def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)

data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
loader = DataLoader(data, batch_size=16)
"""
MODEL = "model = Net()\n"
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
LOOP = """for epoch in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(evaluate(model, loader))
"""
PREPARED = 'model = amp.quantize(model, "qat", calibration=loader)\nmodel = amp.prepare_model(model)\noptimizer = '
FREEZES = "freeze_observers()"


def after(folder: Path, text: str, *, ddp: bool = False, sync_bn: bool = True) -> tuple[str, list[str]]:
    path = folder / "train.py"
    path.write_text(text, encoding="utf-8")
    options = Options(quantize="qat", ddp=ddp, sync_bn=sync_bn)
    report = migrate(path, options)
    assert report.precision == "migrated"
    made = next(change.after for change in report.changes if change.path == path)
    path.write_text(made, encoding="utf-8")
    assert not migrate(path, options).changes, "a second run changes nothing"
    return made, [note.text for note in report.notes if note.code == "AMP181"]


@pytest.mark.parametrize("ddp", [False, True])
def test_a_model_is_prepared_above_its_optimizer_and_converted_behind_the_training(tmp_path, ddp):
    text, why = after(tmp_path, HEAD + MODEL + OPTIMIZER + LOOP, ddp=ddp)
    assert not why
    assert PREPARED in text
    assert "range(2):\n    if epoch == 1:\n        amp.unwrap(model).freeze_observers()\n    model.train()" in text
    assert text.endswith(
        """print("fake-quantized:", evaluate(model, loader))
quantized = amp.convert_quantized(model)
print("int8:", evaluate(quantized, loader))
amp.save_quantized(quantized, "model_int8.pt")
"""
    )


@pytest.mark.parametrize(
    ("head", "condition"),
    [
        ("range(1, 9)", "epoch == 8"),
        ("range(epochs)", "epoch == epochs - 1"),
        ("range(1, epochs + 1)", "epoch == epochs"),
        ("range(begin, settings.epochs)", "epoch == settings.epochs - 1"),
    ],
)
def test_the_last_epoch_is_that_of_the_range(tmp_path, head, condition):
    settings = "import settings\nepochs = 3\nbegin = 0\n"
    text, why = after(tmp_path, HEAD + settings + MODEL + OPTIMIZER + LOOP.replace("range(2)", head))
    assert not why and f"if {condition}:\n        amp.unwrap(model).freeze_observers()" in text


@pytest.mark.parametrize(
    "head",
    ["for epoch in numbers", "for epoch in range(0, 9, 3)", "for epoch in range(len(numbers))", "while epoch < 2"],
)
def test_ranges_that_cannot_be_frozen_are_told(tmp_path, head):
    loop = LOOP.replace("for epoch in range(2)", head) + ("    epoch += 1\n" if "while" in head else "")
    text, why = after(tmp_path, HEAD + "numbers = [0, 1]\nepoch = 0\n" + MODEL + OPTIMIZER + loop)
    assert PREPARED in text and FREEZES not in text
    assert len(why) == 1 and "the ranges of int8 are not frozen for the last epoch" in why[0]


def test_a_last_epoch_that_the_loop_changes_is_not_taken(tmp_path):
    loop = LOOP.replace("range(2)", "range(epochs)") + "    epochs = 5\n"
    text, why = after(tmp_path, HEAD + "epochs = 3\n" + MODEL + OPTIMIZER + loop)
    assert FREEZES not in text and len(why) == 1


def test_what_the_model_goes_through_before_is_its_own(tmp_path):
    before = "def init(part):\n    if isinstance(part, nn.Linear):\n        nn.init.zeros_(part.bias)\n"
    text, why = after(tmp_path, HEAD + before + MODEL + "model.apply(init)\n" + OPTIMIZER + LOOP)
    assert not why and "model.apply(init)\n" + PREPARED in text


def test_weights_that_are_loaded_come_before_or_after(tmp_path):
    load = "model.load_state_dict(torch.load('net.pt'))\n"
    text, why = after(tmp_path, HEAD + MODEL + load + OPTIMIZER + LOOP)
    assert not why and load + PREPARED in text
    resumed = "import sys\nif len(sys.argv) > 1:\n    " + load
    text, why = after(tmp_path, HEAD + MODEL + OPTIMIZER + resumed + LOOP)
    assert not why and text.index("optimizer = ") < text.index("load_state_dict") < text.index("amp.prepare_model")
    assert MODEL + 'model = amp.quantize(model, "qat", calibration=loader)\noptimizer = ' in text


USED = HEAD + MODEL + OPTIMIZER


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (USED.replace("model.parameters()", "model.head.parameters()") + LOOP, "`model.head` is asked of the model"),
        (USED + "for name, p in model.named_parameters():\n    print(name)\n" + LOOP, "`model.named_parameters`"),
        (USED + LOOP + "print(isinstance(model, Net))\n", "what `isinstance` does with the model"),
        (USED + "average = copy.deepcopy(model)\n" + LOOP, "what `copy.deepcopy` does with the model"),
        (USED + LOOP + "torch.save(model, 'net.pt')\n", "what `torch.save` does with the model"),
        (USED + LOOP + "models = [model]\n", "what `[model]` does with the model"),
        (USED + "model.to('cpu')\n" + LOOP, "`model.to` is asked"),
        (USED + "model = model.to('cpu')\n" + LOOP, "`model.to` is asked"),
        (USED + LOOP.replace("model(x)", "model.forward(x)"), "`model.forward`"),
        (USED + LOOP.replace("model(x)", "model(*[x])"), "arguments of one form"),
        (USED.replace("(model(x).", "(model(x=x).") + LOOP, "other arguments than another call"),
        (USED.replace("(self, x)", "(self, x, k=1)") + LOOP.replace("model(x)", "model(x, 2)"), "a constant"),
        (USED.replace("F.relu(", "(F.relu if self.training else F.gelu)(") + LOOP, "`self.training` decides in `Net`"),
        (
            USED.replace("    def forward", "    def train(self, mode=True):\n        return self\n\n    def forward")
            + LOOP,
            "`Net.train` is the script's own",
        ),
        (HEAD.replace("loader =", "other =") + MODEL + OPTIMIZER + "loader = DataLoader(data)\n" + LOOP, "made above"),
        (
            HEAD + "import sys\nmodel = None\nif len(sys.argv) > 1:\n    model = Net()\n" + OPTIMIZER + LOOP,
            "`model` is made on a condition",
        ),
        (
            HEAD + "body = nn.Linear(4, 8)\nmodel = nn.Sequential(body, nn.Linear(8, 2))\n" + OPTIMIZER + LOOP
            + "print(body.weight)\n",
            "`body` is a part of the model",
        ),
        (HEAD + "it = iter(loader)\n" + MODEL + OPTIMIZER + LOOP.replace("in loader", "in it", 1), "its batches once"),
    ],
)  # fmt: skip
def test_what_an_exported_graph_does_not_have_is_told_and_adds_nothing(tmp_path, text, why):
    made, told = after(tmp_path, text)
    assert "quantize" not in made and FREEZES not in made
    assert [why in line for line in told] == [True], told


@pytest.mark.parametrize(
    ("head", "evaluated", "why"),
    [
        ("net = Net()\nmodel = net\n", "net", "`net` keeps the model"),
        ("class Box:\n    pass\nbox = Box()\nbox.model = model = Net()\n", "box.model", "`box.model` keeps the model"),
        ("kept = []\nmodel = Net()\nkept += [model]\nmodel = model.to('cpu')\n", "model", "is kept elsewhere too"),
        ("from ema import Ema\nmodel = Net()\nema = Ema(model)\nmodel = model.to('cpu')\n", "model", "elsewhere too"),
    ],
)  # fmt: skip
def test_what_goes_on_with_the_model_from_before_is_told(tmp_path, head, evaluated, why):
    loop = LOOP.replace("evaluate(model", f"evaluate({evaluated}")
    made, told = after(tmp_path, HEAD + head + OPTIMIZER + loop)
    assert "quantize" not in made and len(told) == 1 and why in told[0], told


def test_a_function_that_is_given_the_model_does_not_prepare_it(tmp_path):
    body = "    net = net.to('cpu')\n    " + (OPTIMIZER + LOOP).replace("model", "net").replace("\n", "\n    ").rstrip(
        " "
    )
    text = f"def fit(net, loader):\n{body}\nmodel = Net()\nfit(model, loader)\nprint(evaluate(model, loader))\n"
    made, told = after(tmp_path, HEAD + text)
    assert "quantize" not in made and "`net` is made in another place" in told[0]
    made, told = after(tmp_path, HEAD + text.replace("    net = net.to('cpu')\n", ""))
    assert not told and MODEL + PREPARED.replace("optimizer = ", "fit(model, loader)") in made


def test_an_optimizer_of_a_factory_gets_the_prepared_model(tmp_path):
    make = "def make():\n    model = Net()\n    return model, torch.optim.SGD(model.parameters(), lr=0.1)\n\n"
    made, told = after(tmp_path, HEAD + make + "model, optimizer = make()\n" + LOOP)
    if told:
        assert "quantize" not in made
    else:
        assert made.index("amp.quantize") < made.index("SGD(")


def test_batch_norm_is_not_joined_over_processes(tmp_path):
    text = HEAD.replace("nn.Linear(4, 8)", "nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))") + MODEL + OPTIMIZER
    made, told = after(tmp_path, text + LOOP, ddp=True)
    assert "quantize" not in made and "which an exported graph does not synchronise" in told[0]
    for options in ({"ddp": True, "sync_bn": False}, {"ddp": False}):
        made, told = after(tmp_path, text + LOOP, **options)
        assert PREPARED in made and not told
