"""Where ``--quantize`` adds its lines, and why it adds none."""

from __future__ import annotations

from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)

data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
loader = DataLoader(data, batch_size=16)
held_out = DataLoader(data, batch_size=32)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOOP = """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""
EVALUATED = LOOP + "    print(evaluate(model, held_out))\n"


def after(folder: Path, text: str, kind: str = "static") -> tuple[str, list[str]]:
    path = folder / "train.py"
    path.write_text(text, encoding="utf-8")
    report = migrate(path, Options(quantize=kind))
    assert report.precision == "migrated"
    made = next(change.after for change in report.changes if change.path == path)
    return made, [note.text for note in report.notes if note.code == "AMP181"]


def test_a_script_that_evaluates_in_its_loop_gets_both_evaluations_behind_it(tmp_path):
    text, why = after(tmp_path, HEAD + EVALUATED + "print('done')\n")
    assert not why
    assert text.endswith(
        """    print(evaluate(model, held_out))
print("float32:", evaluate(model, held_out))
quantized = amp.quantize(model, "static", calibration=loader)
print("int8:", evaluate(quantized, held_out))
amp.save_quantized(quantized, "model_int8.pt")
print('done')
"""
    )


def test_an_evaluation_behind_the_training_is_not_made_twice(tmp_path):
    text, why = after(tmp_path, HEAD + LOOP + "result = evaluate(model, held_out)\nprint(result)\n", "dynamic")
    assert not why and text.count("evaluate(model, held_out)") == 1
    assert 'quantized = amp.quantize(model, "dynamic")\nprint("int8:", evaluate(quantized, held_out))\n' in text


def test_weights_that_are_loaded_behind_an_evaluation_are_evaluated_again(tmp_path):
    loaded = "result = evaluate(model, held_out)\nmodel.load_state_dict(torch.load('best.pt'))\n"
    text, why = after(tmp_path, HEAD + LOOP + loaded)
    assert not why and text.index("load_state_dict") < text.index('print("float32:", evaluate(model, held_out))')


def test_a_checkpoint_is_written_before_anything_can_fail(tmp_path):
    text, why = after(tmp_path, HEAD + EVALUATED + "print('done')\ntorch.save(model.state_dict(), 'net.pt')\n")
    assert not why and text.index("'net.pt'") < text.index("amp.quantize(") and '"net_int8.pt"' in text


def test_a_checkpoint_that_a_caller_writes_later_is_not_put_at_risk(tmp_path):
    body = "".join(f"    {line}\n" if line else "\n" for line in EVALUATED.splitlines())
    called = f"def fit(model, loader, held_out):\n{body}\nfit(model, loader, held_out)\ntorch.save(model, 'net.pt')\n"
    text, why = after(tmp_path, HEAD + called)
    assert text.index("torch.save(model, 'net.pt')") < text.index("amp.quantize(")
    assert len(why) == 1 and "saved and not evaluated: `evaluate(model, held_out)` is called elsewhere" in why[0]


def test_a_name_of_the_script_is_not_taken(tmp_path):
    text, _ = after(tmp_path, HEAD + "quantized = 3\n" + EVALUATED + "print(quantized)\n")
    assert "int8_model = amp.quantize(" in text and text.count("quantized = ") == 1


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("model(x.view(-1, 4))", "inputs=lambda batch: batch[0].view(-1, 4)"),
        ("model(x.cuda().float())", "inputs=lambda batch: batch[0].float()"),
        ("model(x.to('cpu', non_blocking=True))", "calibration=loader)"),
        ("model(y)", "inputs=lambda batch: batch[1]"),
    ],
)
def test_the_model_is_calibrated_with_what_the_loop_gives_it(tmp_path, given, inputs):
    text, why = after(tmp_path, HEAD + EVALUATED.replace("model(x)", given))
    assert not why and inputs in text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEAD + LOOP, "nothing evaluates the model"),
        (HEAD + EVALUATED.replace("model(x)", "model(x + scale)") + "scale = 1\n", "what the model is given"),
        (HEAD + "model = torch.compile(model)\n" + EVALUATED, "gives the model another form"),
        (HEAD + EVALUATED + "torch.save(model.cpu().state_dict(), 'net.pt')\n", "may move the model away"),
        (HEAD + "model.double()\n" + EVALUATED, "float64"),
        (HEAD + "model[0].register_forward_hook(print)\n" + EVALUATED, "adds a hook"),
        (HEAD.replace("(4, 8)", "(4, 8).train()").replace("nn.Linear", "Layer") + EVALUATED, "no linear"),
    ],
)
def test_what_is_not_understood_is_told_and_adds_nothing(tmp_path, text, why):
    made, told = after(tmp_path, text.replace("import nn\n", "import nn\nfrom layers import Layer\n"))
    assert "quantize" not in made
    assert [why in line for line in told] == [True], told
    assert "quantize=" not in made


INLINE = """    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in held_out:
            right += (model(x).argmax(1) == y).sum().item()
    print(right)
    model.train()
"""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEAD + LOOP + INLINE, "stands in the script itself"),
        (HEAD.replace("    model.eval()\n", "") + EVALUATED, "into evaluation mode"),
        (HEAD + EVALUATED.replace("held_out)", "DataLoader(data))"), "may be another one when it is made again"),
        (HEAD + EVALUATED + "del held_out\n", "may have no value"),
        (HEAD.replace("return sum", "torch.save(model, 'a'); return sum") + EVALUATED, "writes a file"),
    ],
)
def test_a_model_that_cannot_be_evaluated_once_more_is_made_and_saved(tmp_path, text, why):
    made, told = after(tmp_path, text)
    lines = 'quantized = amp.quantize(model, "static", calibration=loader)\namp.save_quantized(quantized, "'
    assert lines in made and "int8:" not in made
    assert len(told) == 1 and "is saved and not evaluated" in told[0] and why in told[0], told


TRAINER = """
class Trainer:
    def __init__(self, model, loader):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self):
        for epoch in range(3):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(x), y)
                loss.backward()
                self.optimizer.step()
            print(self.validate())

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        return sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.loader)

Trainer(model, loader).fit()
"""


@pytest.mark.parametrize(("kind", "calibration"), [("static", ', "static", calibration=self.loader'), ("dynamic", "")])
def test_a_model_of_a_trainer_is_made_where_it_is_in_reach(tmp_path, kind, calibration):
    made, told = after(tmp_path, HEAD.rpartition("optimizer")[0] + TRAINER, kind)
    assert len(told) == 1 and "`self.validate` evaluates, and is not given its model" in told[0]
    line = f"        quantized = amp.quantize(self.model{calibration})\n" if calibration else "= amp.quantize(model, "
    assert line in made, made


def test_nothing_is_added_within_a_training_that_may_run_again(tmp_path):
    body = "".join(f"    {line}\n" if line else "\n" for line in EVALUATED.splitlines())
    for head in ("for seed in range(3):\n", "with torch.enable_grad():\n"):
        made, told = after(tmp_path, HEAD + head + body)
        assert ("quantize" in made) == head.startswith("for") and len(told) == (not head.startswith("for"))


def test_the_rewrite_can_be_left_out(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(HEAD + EVALUATED, encoding="utf-8")
    report = migrate(path, Options(quantize="static", ignore=("AMP119",)))
    assert not any("quantize" in change.after for change in report.changes)
    assert not any(note.code == "AMP181" for note in report.notes)
