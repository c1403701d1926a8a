"""What flows into a parameter: the linter asks the points-to analysis where a rule depends on the answer."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from amp_rules.checks import all_checks
from amp_rules.lattice import parameter_flow
from amp_rules.lattice.parameter_flow import Given, ParameterFlow
from amp_rules.lint import Linter, Mode
from amp_rules.source.project_facts import ProjectFacts
from amp_rules.source.text import read_source, source_from_bytes

HEAD = "import torch\nfrom helpers import Meter, make\nfrom sklearn.preprocessing import StandardScaler\n"


def given(text: str, parameter: str = "a", folder: Path = Path("/nowhere")) -> Given | None:
    """What flows into a parameter of the first function that has one of that name."""
    module = ProjectFacts().start(source_from_bytes((HEAD + text).encode(), folder / "module.py"))
    arguments = (item for item in ast.walk(module.module.tree) if isinstance(item, ast.arg) and item.arg == parameter)
    return ParameterFlow(module).given(next(arguments))


@pytest.mark.parametrize(
    ("call", "made_by", "complete"),
    [
        ("f(torch.amp.GradScaler())", {"torch.amp.GradScaler"}, True),
        ("f(a=torch.optim.AdamW([]))", {"torch.optim.AdamW"}, True),
        ("f(None); f(StandardScaler())", {"sklearn.preprocessing.StandardScaler"}, True),
        ("x = torch.optim.SGD([], 0.1)\nf(x)\nf(unknown)", {"torch.optim.SGD"}, False),
        ("f(torch.amp.GradScaler())\nf(**options)", {"torch.amp.GradScaler"}, False),
        ("f(make())", {"helpers.make"}, False),
        ("def g(b):\n    f(b)\ng(torch.amp.GradScaler())", {"torch.amp.GradScaler"}, True),
    ],
)
def test_objects_of_libraries_flow_in(call: str, made_by: set[str], complete: bool) -> None:
    found = given(f"def f(a=None):\n    a.step()\n{call}\n")
    assert found == Given(frozenset(made_by), frozenset(), complete)


def test_nothing_is_known_where_nothing_in_the_file_calls_the_function() -> None:
    assert given("def f(a):\n    a.step()\n") is None


def test_methods_are_asked_about_too() -> None:
    found = given("class T:\n    def fit(self, a):\n        a.step()\nT().fit(torch.optim.SGD([], 0.1))\n")
    assert found == Given(frozenset({"torch.optim.SGD"}), frozenset(), True)


def test_classes_of_the_project_are_found_in_this_file_and_in_others(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("class Meter:\n    pass\n\n\ndef make():\n    return Meter()\n")
    text = "class Own(torch.optim.Optimizer):\n    pass\ndef f(a):\n    a.step()\nf(Own())\nf(Meter())\n"
    found = given(text, folder=tmp_path)
    assert found is not None and found.complete and not found.made_by
    assert {item.name: item.is_optimizer for item in found.classes} == {"Own": True, "Meter": False}


# ---- the rules that depend on it -----------------------------------------------------------------------------

STEP = """
def train(net, batches, {names}):
    for x, y in batches:
        loss = (net(x) - y).abs().mean()
        {scaler}.scale(loss).backward()
        {optimizer}.step()


def main(net, batches):
    train(net, batches, {given})
"""


def codes(text: str, folder: Path = Path("/nowhere")) -> set[str]:
    linter = Linter(Mode(), all_checks(), {check.code for check in all_checks() if check.in_order})
    return {item.code for item in linter.lint(source_from_bytes((HEAD + text).encode(), folder / "train.py")).findings}


def step(scaler: str, optimizer: str, given: str) -> str:
    return STEP.format(names=f"{scaler}, {optimizer}", scaler=scaler, optimizer=optimizer, given=given)


SGD = "torch.optim.SGD(net.parameters(), 0.1)"


@pytest.mark.parametrize(
    ("text", "fires"),
    [
        (step("gs", "o", f"torch.amp.GradScaler(), {SGD}"), True),
        (step("gs", "o", f"unknown(), {SGD}"), True),
        (step("gs", "o", "torch.amp.GradScaler(), unknown()"), False),
        (step("scaler", "optimizer", f"StandardScaler(), {SGD}"), False),
        (step("scaler", "optimizer", f"unknown(), {SGD}"), True),
        (step("scaler", "optimizer", "torch.amp.GradScaler(), torch.optim.lr_scheduler.StepLR(other, 3)"), False),
    ],
)
def test_what_flows_in_wins_over_the_name(text: str, fires: bool) -> None:
    assert ("AMP815" in codes(text)) is fires


WRAPPER = """
class Scaler:
    def __init__(self):
        {held}

    def scale(self, loss):
        return loss * 2

"""


@pytest.mark.parametrize(
    ("held", "fires"), [("self.inner = torch.amp.GradScaler()", True), ("self.largest = 1", False)]
)
def test_a_class_that_holds_a_scaler_is_taken_for_one(held: str, fires: bool) -> None:
    text = WRAPPER.format(held=held) + step("scaler", "optimizer", f"Scaler(), {SGD}")
    assert ("AMP815" in codes(text)) is fires


def test_findings_rest_on_the_files_whose_classes_flow_in(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("class Meter:\n    pass\n")
    (tmp_path / "train.py").write_text(HEAD + step("scaler", "optimizer", f"Meter(), {SGD}"))
    result = Linter(Mode(), all_checks(), {"AMP815"}).lint(read_source(tmp_path / "train.py"))
    assert result.findings == ()
    assert tmp_path / "helpers.py" in result.dependencies


def test_nothing_is_asked_where_names_tell_and_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Counted(parameter_flow.Flow):
        def __init__(self, project) -> None:
            asked.append(project)
            super().__init__(project)

    monkeypatch.setattr(parameter_flow, "Flow", Counted)
    right = STEP.replace("{optimizer}.step()", "{scaler}.step({optimizer})\n        {scaler}.update()")
    text = right.format(names="scaler, optimizer", scaler="scaler", optimizer="optimizer", given=f"None, {SGD}")
    assert codes(text) == set() and not asked
    # Two rules and several parameters ask, and one analysis answers.
    assert codes(step("gs", "o", f"torch.amp.GradScaler(), {SGD}")) and len(asked) == 1
