"""A backward pass that only looks at the model stays as it is, where nothing steps with what it leaves."""

from __future__ import annotations

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options
from migrating import FIXTURES

SCRIPT = (FIXTURES / "AMP103" / "passes_that_look_at_the_model" / "before.py").read_text(encoding="utf-8")


def report_of(tmp_path, *edits, **options):
    text = SCRIPT
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    entry = tmp_path / "train.py"
    entry.write_text(text, encoding="utf-8")
    return migrate(entry, Options(**options))


def test_such_passes_stay_and_are_named(tmp_path):
    report = report_of(tmp_path)
    assert report.precision == "migrated"
    assert [note.code for note in report.notes] == ["AMP186"] * 3


def test_a_round_may_be_a_function(tmp_path):
    body = SCRIPT.partition("    for x, y in loader:\n        optimizer.zero_grad()")[2].partition("\n\n\ndataset")[0]
    head = "    for x, y in loader:\n        trained(model, x, y, optimizer)"
    own = "def trained(model, x, y, optimizer):\n    optimizer.zero_grad()" + body.replace("\n        ", "\n    ")
    report = report_of(
        tmp_path,
        ("    for x, y in loader:\n        optimizer.zero_grad()" + body, head),
        ("dataset = ", own + "\n\n\ndataset = "),
    )
    assert report.precision == "migrated"
    assert report.changes[0].after.count("amp.scaler.scale(") == 1


def test_several_processes_are_declined_at_each(tmp_path):
    report = report_of(tmp_path, ddp=True)
    assert (report.precision, report.distribution) == ("migrated", "declined")
    assert [refusal.code for refusal in report.refusals] == ["AMP293"] * 3


@pytest.mark.parametrize(
    "edits",
    [
        [("        optimizer.zero_grad()\n", "")],
        [("        optimizer.zero_grad()\n", "        if y.sum() > 9:\n            optimizer.zero_grad()\n")],
        [
            ("        optimizer.zero_grad()\n", ""),
            ("        optimizer.step()\n", "        optimizer.step()\n        optimizer.zero_grad()\n"),
        ],
        [("        print(loss.item())\n", "        print(loss.item())\n        input_gradient(model, x)\n")],
        [("maps.retain_grad()", "maps = model.body.weight\n    maps.retain_grad()")],
        [("    return shown\n", "    print(model.head.weight.grad)\n    return shown\n")],
        [("    print(under_attack", "    print(model.head.weight.grad)\n    print(under_attack")],
        [("        optimizer.zero_grad()\n", "        optimizer.zero_grad()\n        y.requires_grad = False\n")],
        [("given = x.clone().detach()", "given = x")],
        [
            ("def input_gradient(model, x):\n", "def input_gradient(model, x, given):\n"),
            ("given = x.clone()", "given = given.clone()"),
            ("input_gradient(model, x).sum", "input_gradient(model, x, x).sum"),
        ],
        [("test_loader = DataLoader(dataset, batch_size=16)", "test_loader = DataLoader(dataset, batch_size=None)")],
        [
            (
                "test_loader = DataLoader(dataset, batch_size=16)",
                "test_loader = list(DataLoader(dataset, batch_size=16))",
            )
        ],
        [("model = Net()\n", "model = Net()\nhooks = [input_gradient]\n")],
        [("    return shown\n", "    optimizer.step()\n    return shown\n")],
        [("    return right\n", "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    return right\n")],
    ],
    ids=[
        "never-cleared",
        "cleared-in-some-rounds",
        "cleared-behind-the-step",
        "within-a-round",
        "of-a-weight",
        "reads-a-weights-gradient",
        "read-elsewhere",
        "marked-in-a-round",
        "of-the-datas-own-tensor",
        "of-a-parameter-of-the-function",
        "of-samples-that-are-not-stacked",
        "of-batches-that-are-kept",
        "handed-around",
        "steps",
        "clips",
    ],
)
def test_what_may_reach_a_step_is_declined(edits, tmp_path):
    report = report_of(tmp_path, *edits)
    assert report.precision == "declined"
    assert report.changes == ()


def test_a_function_that_both_call_gets_no_region_of_its_own(tmp_path):
    shared = "def scored(model, x):\n    return model(x)\n\n\ndef train("
    trained = "cross_entropy({}, y)\n        loss.backward()\n        nn"
    report = report_of(
        tmp_path,
        ("def train(", shared),
        ("scores = model(given)", "scores = scored(model, given)"),
        (trained.format("model(x)"), trained.format("scored(model, x)")),
    )
    assert report.precision == "migrated"
    (change,) = report.changes
    assert "with amp.autocast():\n            loss = nn.functional.cross_entropy(scored(model, x), y)" in change.after
    assert change.after.count("amp.autocast()") == 1
