"""Generated training scripts are the same before and after: alone, with a loss scale, and in two processes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import fields

import pytest
from comparing import differences
from grammar import CHOICES, Script, scripts
from hypothesis import HealthCheck, Phase, given, settings
from properties import examples
from running import Runner
from warm import Warm

PROFILE = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
MOST = max(map(len, CHOICES.values()))


@pytest.fixture(scope="module")
def runner(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(warm, tmp_path_factory.mktemp("generated"))


def covering(number: int) -> Script:
    """One of as many scripts as the longest feature has choices, which have every choice of every feature together."""
    return Script(**{name: choices[number % len(choices)] for name, choices in CHOICES.items()})


def check(runner: Runner, script: Script) -> None:
    runs = runner.runs(script.text())
    assert runs.original.ended_well, f"{script.features}\n{runs.original.why}"
    found = differences(runs)
    assert not found, "\n".join([script.features, *found, script.text()])


def test_the_features_of_a_script_are_those_of_the_grammar() -> None:
    assert [item.name for item in fields(Script)] == list(CHOICES)
    assert all(item.default == CHOICES[item.name][0] for item in fields(Script))
    assert len(CHOICES) >= 30


@pytest.mark.parametrize("number", range(MOST))
def test_every_choice_gives_a_program(number: int) -> None:
    ast.parse(covering(number).text())


@pytest.mark.heavy
@pytest.mark.parametrize("number", range(MOST))
def test_every_choice_is_the_same_before_and_after(runner: Runner, number: int) -> None:
    check(runner, covering(number))


@pytest.mark.slow
@pytest.mark.heavy
@settings(PROFILE, max_examples=examples(40))
@given(scripts())
def test_choices_together_are_the_same_before_and_after(runner: Runner, script: Script) -> None:
    check(runner, script)


WRONG: dict[str, tuple[Script, Callable[[str], str], str]] = {
    "a step without the scaler": (
        Script(),
        lambda text: text.replace("amp.scaler.step(optimizer)", "optimizer.step()"),
        "scaled: ",
    ),
    "clipping while scaled": (
        Script(gradients="clip_norm"),
        lambda text: text.replace("        amp.scaler.unscale_(optimizer)\n", ""),
        "scaled: ",
    ),
    "a random number more": (
        Script(model="dropout"),
        lambda text: text.replace("for epoch", "torch.rand(1)\nfor epoch"),
        "O0: ",
    ),
    "a loader that is not shared out": (
        Script(),
        lambda text: text.replace("amp.prepare_loader(", "("),
        "together: ",
    ),
    "gradients that are not averaged": (
        Script(),
        lambda text: text.replace("amp.prepare_model(Net())", "Net()"),
        "together: ",
    ),
    "a file of each rank": (
        Script(log="append", printing="nothing"),
        lambda text: text.replace("if amp.is_main_process():", "if True:"),
        "together: ",
    ),
    "a schedule that is too long": (
        Script(schedule="one_cycle"),
        lambda text: text.replace("steps_per_epoch=len(loader)", "steps_per_epoch=2 * len(loader)"),
        "together: ",
    ),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found(runner: Runner, name: str) -> None:
    script, damage, where = WRONG[name]
    runs = runner.runs(script.text())
    assert not differences(runs)
    right = next(change.after for change in runs.report.changes)
    wrong = damage(right)
    assert wrong != right, right
    found = differences(runner.compared(runs.report, script.text(), wrong))
    assert any(words.startswith(where) for words in found), found
