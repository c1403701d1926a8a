"""How the scaler gets to its uses, and what torch's scaler would refuse or get wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.folder.torch_users import join_in_torch
from amp_rules.plan.options import Options
from amp_rules.source.modules import parse
from amp_rules.source.text import SourceFile
from amp_rules.text.actions import AddParameter
from amp_rules.text.applying import apply

sys.path.insert(0, str(Path(__file__).parents[1] / "rules"))

from migrating import migrated_text, write

HEAD = """import functools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


"""
GLOBALS = """model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8)


"""
STEP = """def step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()


"""
LOOP = """for x, y in loader:
    {}
"""
MAIN = """def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8)
    {}


if __name__ == "__main__":
    main()
"""
PLAIN = "step(model, optimizer, x, y)"
IN_MAIN = MAIN.format("for x, y in loader:\n        " + PLAIN)
# Torch's scaler sees one optimizer, whose gradients nothing clears but what is filled in.
ROUND = """for i, (x, y) in enumerate(loader):
{}
"""


def declined(folder: Path, text: str, options: Options | None = None) -> str:
    """The messages of a migration to plain torch that is declined."""
    report = migrate(write(folder, {"train.py": text.encode()}), options or Options(target="torch"))
    assert report.precision == "declined", report
    assert not report.changes
    return " ".join(refusal.message for refusal in report.refusals)


def translated(folder: Path, text: str, options: Options | None = None) -> str:
    report, result = migrated_text(folder, text, options or Options(target="torch"))
    assert report.precision == "migrated", report.refusals
    return result


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (STEP + MAIN.format("run = functools.partial(step, model, optimizer)\n    for x, y in loader: run(x, y)"),
         "`step` is handed on"),
        (STEP + MAIN.format("for x, y in loader:\n        list(map(step, [model], [optimizer], [x], [y]))"), "`step`"),
        ("@functools.lru_cache\n" + STEP + IN_MAIN, "stands between `step` and its calls"),
        (STEP + "def unused(x, y):\n    step(model, optimizer, x, y)\n\n\n" + IN_MAIN,
         "nothing in the program calls `unused`"),
    ],
    ids=["partial", "map", "decorated", "unused caller"],
)  # fmt: skip
def test_a_function_that_is_not_called_plainly_is_not_given_the_scaler(code: str, message: str, tmp_path: Path) -> None:
    assert message in declined(tmp_path, HEAD + code)


def test_a_global_scaler_is_enough_where_a_function_is_handed_on(tmp_path: Path) -> None:
    code = HEAD + STEP + GLOBALS + "run = functools.partial(step, model, optimizer)\n" + LOOP.format("run(x, y)")
    text = translated(tmp_path, code)
    assert "def step(model, optimizer, x, y):" in text
    assert "\nscaler = torch.amp.GradScaler(" in text


def test_a_function_that_calls_itself_passes_the_scaler_on(tmp_path: Path) -> None:
    code = HEAD + STEP + "def repeat(n, model, optimizer, x, y):\n    step(model, optimizer, x, y)\n"
    code += "    if n:\n        repeat(n - 1, model, optimizer, x, y)\n\n\n"
    code += MAIN.format("for x, y in loader:\n        repeat(2, model, optimizer, x, y)")
    assert translated(tmp_path, code).count("repeat(n - 1, model, optimizer, x, y, scaler=scaler)") == 1


def test_a_script_that_is_not_migrated_and_calls_the_function_declines(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    files = {"train.py": HEAD + STEP + IN_MAIN, "other.py": "from train import step\n\nstep(1, 2, 3, 4)\n"}
    write(tmp_path / "project", {name: text.encode() for name, text in files.items()})
    report = migrate(tmp_path / "project" / "train.py", Options(target="torch"))
    report = join_in_torch([report]).reports[0]
    assert report.precision == "declined"
    assert "other.py" in report.refusals[0].message


BACKWARD = "    nn.functional.mse_loss(model(x), y).backward()\n"
CLIP = "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (BACKWARD + CLIP + "    if i % 2:\n        optimizer.step()\n        optimizer.zero_grad()", "a second time"),
        (BACKWARD + "    optimizer.step()", "may be left here"),
        (BACKWARD + "    optimizer.step()\n    if i % 2:\n        optimizer.zero_grad()", "may be left here"),
    ],
    ids=["clipped in every round", "never cleared", "cleared in some rounds"],
)
def test_gradients_that_would_be_unscaled_twice_decline(code: str, message: str, tmp_path: Path) -> None:
    text = HEAD + GLOBALS + ROUND.format(code)
    assert message in declined(tmp_path, text)
    # There is no scale in bfloat16.
    assert "GradScaler" not in translated(tmp_path, text, Options(target="torch", dtype="bf16"))


@pytest.mark.parametrize(
    "code",
    [
        BACKWARD + "    if i % 2:\n        optimizer.step()\n        optimizer.zero_grad()",
        BACKWARD + "    optimizer.step()\n    model.zero_grad()",
        BACKWARD + "    optimizer.step()\n    for p in model.parameters():\n        p.grad = None",
        "    optimizer.zero_grad()\n" + BACKWARD + "    if y.isnan().any():\n        continue\n    optimizer.step()",
        "    if optimizer is not None:\n        optimizer.zero_grad()\n" + BACKWARD
        + "    if optimizer is not None:\n        optimizer.step()",
    ],
    ids=["accumulates", "cleared by the model", "cleared by hand", "skips a round", "may be none"],
)  # fmt: skip
def test_rounds_that_torchs_scaler_takes_are_migrated(code: str, tmp_path: Path) -> None:
    assert "scaler.step(optimizer)" in translated(tmp_path, HEAD + GLOBALS + ROUND.format(code))


NET = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.body(x))


"""


def test_a_norm_over_more_than_the_optimizer_holds_declines(tmp_path: Path) -> None:
    code = HEAD + NET + GLOBALS.replace("nn.Linear(4, 1)", "Net()")
    code += ROUND.format("    optimizer.zero_grad()\n" + BACKWARD + CLIP + "    optimizer.step()")
    head = code.replace("SGD(model.parameters()", "SGD(model.head.parameters()")
    assert "no optimizer holds some of `model.parameters()`" in declined(tmp_path, head)
    groups = '[{"params": model.body.parameters()}, {"params": model.head.parameters(), "lr": 0.2}]'
    for whole in (code, code.replace("SGD(model.parameters()", f"SGD({groups}")):
        assert "scaler.unscale_(optimizer)" in translated(tmp_path, whole)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("()", "(scaler)"),
        ("(a, b)", "(a, b, scaler)"),
        ("(a, b=1)", "(a, b=1, *, scaler)"),
        ("(a, *args)", "(a, *args, scaler)"),
        ("(a, *args, **kw)", "(a, *args, scaler, **kw)"),
        ("(a, **kw)", "(a, scaler, **kw)"),
        ("(a=1, **kw)", "(a=1, *, scaler, **kw)"),
        ("(a, *, b=2)", "(a, *, b=2, scaler)"),
        ("(a, /)", "(a, /, scaler)"),
        ("(a=1, /)", "(a=1, /, *, scaler)"),
        ("(\n    a,  # one\n    b,  # two\n)", "(\n    a,  # one\n    b,  # two\n    scaler,\n)"),
    ],
)
def test_a_parameter_is_added_where_calls_by_place_stay_what_they_are(before: str, after: str) -> None:
    text = f"def f{before}:\n    pass\n"
    module = parse(SourceFile(Path("x.py"), text.encode(), text, "utf-8"))
    definition = module.tree.body[0]
    assert apply(module, [AddParameter(definition, "scaler")]) == f"def f{after}:\n    pass\n"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(a=1)", "(scaler, a=1)"),
        ("(a, b=1)", "(a, scaler, b=1)"),
        ("(a, b)", "(a, b, scaler)"),
        ("(a, b=1, *args, c=2, **kw)", "(a, scaler, b=1, *args, c=2, **kw)"),
        ("(a, *, b=2)", "(a, *, b=2, scaler)"),
        ("(a=1, /, b=2)", "(a=1, /, b=2, *, scaler)"),
        ("(a, b,\n      c=1)", "(a, b, scaler,\n      c=1)"),
        ("(\n    a,\n    b,  # two\n    c=1,\n)", "(\n    a,\n    b,  # two\n    scaler,\n    c=1,\n)"),
    ],
)
def test_a_parameter_goes_before_defaults_that_no_call_gives_by_place(before: str, after: str) -> None:
    text = f"def f{before}:\n    pass\n"
    module = parse(SourceFile(Path("x.py"), text.encode(), text, "utf-8"))
    definition = module.tree.body[0]
    action = AddParameter(definition, "scaler", before_defaults=True)  # type: ignore[arg-type]
    assert apply(module, [action]) == f"def f{after}:\n    pass\n"


@pytest.mark.parametrize(
    ("call", "head"),
    [
        ("step(model, optimizer, x, y, weight=2.0)", "def step(model, optimizer, x, y, scaler, weight=1.0):"),
        ("step(model, optimizer, x, y, 2.0)", "def step(model, optimizer, x, y, weight=1.0, *, scaler):"),
        ("step(*(model, optimizer, x, y))", "def step(model, optimizer, x, y, weight=1.0, *, scaler):"),
    ],
)
def test_calls_that_give_a_default_by_place_keep_the_order(call: str, head: str, tmp_path: Path) -> None:
    code = STEP.replace("x, y):", "x, y, weight=1.0):").replace("loss.backward", "(loss * weight).backward")
    assert head in translated(tmp_path, HEAD + code + MAIN.format("for x, y in loader:\n        " + call))


@pytest.mark.parametrize(
    ("body", "place"),
    [
        # Two optimizers in one suite.
        ("a = torch.optim.SGD(model.parameters(), lr=0.1)\n"
         "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
         "    for x, y in loader:\n        step(model, a, x, y)\n        step(model, optimizer, x, y)",
         "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"),
        # One of two.
        ("if len(loader) > 3:\n        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n    else:\n"
         "        optimizer = torch.optim.Rprop(model.parameters())\n"
         "    for x, y in loader:\n        step(model, optimizer, x, y)",
         "        optimizer = torch.optim.Rprop(model.parameters())\n"),
        # Each round of a loop has its own.
        ("for fold in range(2):\n        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
         "        for x, y in loader:\n            step(model, optimizer, x, y)",
         "        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"),
        # Each round has its own, and something outlives it.
        ("for fold in range(2):\n        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
         "        for x, y in loader:\n            step(model, optimizer, x, y)\n    step(model, optimizer, x, y)",
         "def main():\n"),
        # One is made where the other has been stepped.
        ("a = torch.optim.SGD(model.parameters(), lr=0.1)\n    for x, y in loader:\n        step(model, a, x, y)\n"
         "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
         "    for x, y in loader:\n        step(model, optimizer, x, y)",
         "def main():\n"),
    ],
    ids=["two", "one of two", "each round", "outlives the loop", "after a step"],
)  # fmt: skip
def test_the_scaler_is_made_below_the_optimizers_and_above_its_uses(body: str, place: str, tmp_path: Path) -> None:
    lines = MAIN.splitlines(keepends=True)
    main = "".join(line for line in lines if "optimizer =" not in line).format(body)
    text = translated(tmp_path, HEAD + STEP + main)
    above, _, _ = text.partition("scaler = torch.amp.GradScaler(")
    assert above.rstrip(" ").endswith(place), text
    assert text.count("GradScaler(") == 1
