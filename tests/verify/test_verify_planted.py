"""Wrong migrations of scripts that are migrated rightly: ``amp-migrate verify`` says of each that it is wrong, and why.

Each script in ``planted`` is migrated by ``amp-migrate`` itself, and lines of the result are replaced.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from amp_migrate.commands.migrate import main
from amp_migrate.verify import runs
from amp_migrate.verify.checks import runs as checks_of_runs
from click.testing import CliRunner
from forked import Forked
from harmless import HARMLESS
from wrong import (
    ACCUMULATION,
    ALIKE,
    ALONE,
    AVERAGING,
    DISTRIBUTED,
    EVALUATION,
    GAN,
    LAUNCHED,
    PLAIN,
    SAMPLING,
    TOGETHER,
    Wrong,
)
from wrong_averages import AVERAGED
from wrong_data import DATA
from wrong_decisions import DECISIONS
from wrong_outputs import PRINTED, WRITTEN
from wrong_own_ddp import OWN_DDP
from wrong_precision import AUTOCAST, SCALING, STEPS

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
]

PLANTED = Path(__file__).with_name("planted")
GROUPS = (AUTOCAST, SCALING, STEPS, DATA, AVERAGED, DECISIONS, OWN_DDP, PRINTED, WRITTEN)
WRONG: dict[str, Wrong] = {kind: wrong for group in GROUPS for kind, wrong in group.items()}
FEW_STEPS = "10"


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a planted script as ``amp-migrate`` migrates it, once for all tests."""
    made: dict[str, Path] = {}

    def migrate(script: str) -> Path:
        if script not in made:
            folder = tmp_path_factory.mktemp("migrated") / "project"
            shutil.copytree((PLANTED / script).parent, folder)
            invoke(str(folder / Path(script).name), "--ddp", "-w", "--quiet", status=0)
            made[script] = folder
        return made[script]

    return migrate


@pytest.fixture
def verified(forked: Forked, migrated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What ``amp-migrate verify`` finds out about a script and an edited migration of it, and that migration."""
    monkeypatch.setattr(runs, "run_together", forked.run_together)
    # Processes that wait for each other are given up sooner than a user's, whose steps may take long.
    monkeypatch.setattr(checks_of_runs, "_LEAST_GAP", 0.2)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def verify(script: str, edits: Sequence[tuple[str, str]], *options: str) -> tuple[int, dict[str, Any], str]:
        project, edited, name = tmp_path / "project", tmp_path / "migrated", Path(script).name
        shutil.copytree((PLANTED / script).parent, project)
        shutil.copytree(migrated(script), edited)
        text = edit(edited / name, edits)
        monkeypatch.chdir(project)
        steps = () if "--full" in options else ("--steps", FEW_STEPS)
        result = CliRunner().invoke(
            main, ["verify", name, "--migrated", str(edited / name), "--format", "json", "--quiet", *steps, *options]
        )
        return result.exit_code, json.loads(result.stdout), text

    return verify


def invoke(*arguments: str, status: int) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == status, result.output


def edit(path: Path, edits: Sequence[tuple[str, str]]) -> str:
    """Replace each text, which the file has exactly once; return what it is then."""
    text = path.read_text(encoding="utf-8")
    for before, after in edits:
        assert text.count(before) == 1, f"{before!r} in\n{text}"
        text = text.replace(before, after)
    compile(text, str(path), "exec")
    path.write_text(text, encoding="utf-8")
    return text


def places(wrong: Wrong, text: str) -> list[str]:
    """The places of a line in the edited script, as messages name them."""
    return [f"{wrong.file}:{n}" for n, line in enumerate(text.splitlines(), 1) if line.strip() == wrong.line]


def marked(kind: str) -> Any:
    wrong = WRONG[kind]
    marks = [pytest.mark.xfail(strict=True, reason=wrong.missed)] if wrong.missed else []
    # In several processes, to the end of a script, each takes half a minute.
    if wrong.missed or wrong.options != ALONE:
        marks.append(pytest.mark.campaign)
    return pytest.param(kind, marks=marks)


@pytest.mark.parametrize("kind", [marked(kind) for kind in WRONG])
def test_a_wrong_migration_is_found(kind: str, verified: Any) -> None:
    wrong = WRONG[kind]
    status, evidence, text = verified(wrong.script, wrong.edits, *wrong.options)
    messages = {check["id"]: check["message"] for check in evidence["checks"] if check["verdict"] == wrong.verdict}
    assert wrong.by in messages, evidence["checks"]
    assert wrong.words in messages[wrong.by]
    if wrong.line:
        named = places(wrong, text)
        assert named
        assert any(place in messages[wrong.by] for place in named), (named, messages[wrong.by])
    assert (status, evidence["verdict"]) == ({"disproved": 1, "unproved": 3}[wrong.verdict], wrong.verdict)


OFTEN = (PLAIN, ACCUMULATION, GAN)
RIGHT = (
    *OFTEN,
    *(
        pytest.param(script, marks=pytest.mark.campaign)
        for script in (EVALUATION, SAMPLING, AVERAGING, ALIKE, DISTRIBUTED, LAUNCHED)
    ),
)


@pytest.mark.parametrize("script", RIGHT)
def test_the_right_one_is_proved(script: str, verified: Any) -> None:
    status, evidence, _ = verified(script, (), "--levels", "O0,O1,O2", "--procs", "2", "--full")
    assert (status, evidence["verdict"]) == (0, "proved"), evidence["checks"]
    ids = {check["id"] for check in evidence["checks"]}
    assert ids >= {"runs", "o0-exact", "o0-scaled", "o1-band", "o2-band", "o1-half", "o2-half"}
    together = {"ranks-agree", "shares", "new-order", "one-process"}
    assert ids >= ({"together-exact"} if script in (DISTRIBUTED, LAUNCHED) else together)


NOT_SHOWN = {"a sampler of one's own": "the run in one process does not see the same samples in the first step"}


def marked_right(kind: str) -> Any:
    reason = NOT_SHOWN.get(kind)
    return pytest.param(kind, marks=pytest.mark.xfail(strict=True, reason=reason) if reason else ())


@pytest.mark.campaign
@pytest.mark.parametrize("kind", [marked_right(kind) for kind in HARMLESS])
def test_a_right_variant_is_proved(kind: str, verified: Any) -> None:
    script, edits = HARMLESS[kind]
    status, evidence, _ = verified(script, edits, *TOGETHER, "--full")
    assert (status, evidence["verdict"]) == (0, "proved"), evidence["checks"]


def test_a_scaler_left_out_is_said_and_is_right_in_bfloat16(verified: Any) -> None:
    edits = (
        ("amp.scaler.scale(loss).backward()", "loss.backward()"),
        ("            amp.scaler.step(optimizer)\n            amp.scaler.update()\n", "            optimizer.step()\n"),
    )
    _, evidence, _ = verified(ACCUMULATION, edits, *ALONE)
    checks = {check["id"]: check for check in evidence["checks"]}
    assert (checks["o0-exact"]["verdict"], checks["o0-scaled"]["verdict"]) == ("proved", "unproved")
    assert "No loss was scaled" in checks["o0-scaled"]["message"]


def test_each_kind_is_wrong_in_another_way() -> None:
    assert len(WRONG) == sum(map(len, GROUPS)) >= 60
    assert len({(wrong.script, wrong.edits) for wrong in WRONG.values()}) == len(WRONG)
    assert {
        "o0-exact",
        "o0-scaled",
        "o1-half",
        "shares",
        "new-order",
        "ranks-agree",
        "sync-bn",
        "one-process",
        "together-exact",
        "runs",
    } <= {wrong.by for wrong in WRONG.values() if not wrong.missed}
