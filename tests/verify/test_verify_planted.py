"""Wrong rewrites of scripts that are migrated rightly: ``amp-migrate verify`` says of each that it is wrong, and why.

Each script in ``planted`` is migrated by ``amp-migrate`` itself, and lines of the result are replaced.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from amp_migrate.commands.migrate import main
from amp_migrate.verify import runs
from click.testing import CliRunner
from forked import Forked

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
]

PLANTED = Path(__file__).with_name("planted")
PLAIN, ACCUMULATION, DISTRIBUTED = "plain/train.py", "accumulation/train.py", "distributed/main.py"
STEPS = 10


@pytest.fixture
def verified(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What ``amp-migrate verify`` finds out about a script and an edited migration of it."""
    monkeypatch.setattr(runs, "run_together", forked.run_together)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def verify(script: str, edits: Sequence[tuple[str, str]], *options: str) -> tuple[int, dict[str, Any]]:
        project, migrated = tmp_path / "project", tmp_path / "migrated"
        for folder in (project, migrated):
            shutil.copytree((PLANTED / script).parent, folder)
        name = Path(script).name
        invoke(str(migrated / name), "--ddp", "-w", "--quiet", status=0)
        edit(migrated / name, edits)
        monkeypatch.chdir(project)
        options = ("--steps", str(STEPS), *options)
        result = CliRunner().invoke(
            main, ["verify", name, "--migrated", str(migrated / name), "--format", "json", "--quiet", *options]
        )
        return result.exit_code, json.loads(result.stdout)

    return verify


def invoke(*arguments: str, status: int) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == status, result.output


def edit(path: Path, edits: Sequence[tuple[str, str]]) -> None:
    """Replace each text, which the file has exactly once."""
    text = path.read_text(encoding="utf-8")
    for before, after in edits:
        assert text.count(before) == 1, f"{before!r} in\n{text}"
        text = text.replace(before, after)
    compile(text, str(path), "exec")
    path.write_text(text, encoding="utf-8")


ALONE = ("--procs", "1", "--levels", "O0")
TOGETHER = ("--procs", "2", "--levels", "O0")


@dataclass(frozen=True)
class Wrong:
    """A wrong rewrite.

    Attributes:
        script: what was migrated.
        edits: what is replaced in the migrated script.
        by: the check that says so first.
        words: a part of what it says.
        options: more of ``amp-migrate verify``.
    """

    script: str
    edits: tuple[tuple[str, str], ...]
    by: str
    words: str
    options: tuple[str, ...] = ALONE


LOADER = "    train_loader = amp.prepare_loader(DataLoader(make_spirals(24), batch_size=4, shuffle=True))\n"
REGION = """\
            with amp.autocast():
                loss = F.cross_entropy(model(x), y)
"""
CLIPPED = """\
            amp.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
"""
SAMPLER = """\
    from torch.utils.data.distributed import DistributedSampler
    dataset = make_spirals(24)
    train_loader = DataLoader(dataset, batch_size=4, shuffle=True)
    if amp.world_size() > 1:
        sampler = DistributedSampler(dataset)
        train_loader = DataLoader(dataset, batch_size=4, sampler=sampler)
"""

WRONG = {
    "autocast left out": Wrong(
        PLAIN,
        ((REGION, "            loss = F.cross_entropy(model(x), y)\n"),),
        "o1-half",
        "train.py:47",
        ("--procs", "1", "--levels", "O1"),
    ),
    "step taken twice": Wrong(
        PLAIN,
        (("            amp.scaler.step(optimizer)\n", "            amp.scaler.step(optimizer)\n" * 2),),
        "o0-exact",
        "step twice, in the original once",
    ),
    "zero_grad left out": Wrong(PLAIN, (("            optimizer.zero_grad()\n", ""),), "o0-exact", "not cleared"),
    "random numbers drawn at the start": Wrong(
        PLAIN,
        (("    model = amp.prepare_model(Net())\n", "    torch.rand(1)\n    model = amp.prepare_model(Net())\n"),),
        "o0-exact",
        "The loss of step 1 ",
    ),
    "clipped before unscaled": Wrong(
        PLAIN,
        ((CLIPPED, "".join(reversed(CLIPPED.splitlines(keepends=True)))),),
        "o0-scaled",
        "while they are still scaled",
    ),
    "stepped on scaled gradients": Wrong(
        ACCUMULATION,
        (("amp.scaler.step(optimizer)", "optimizer.step()"),),
        "o0-scaled",
        "The optimizer steps on gradients that are still scaled",
    ),
    "every other loss not scaled": Wrong(
        ACCUMULATION,
        (("amp.scaler.scale(loss).backward()", "(loss if i % 2 else amp.scaler.scale(loss)).backward()"),),
        "o0-scaled",
        "is not scaled, and its gradients are divided",
    ),
    "unscaled twice": Wrong(
        PLAIN,
        (
            (
                CLIPPED,
                CLIPPED + "            for parameter in model.parameters():\n"
                "                parameter.grad /= float(amp.scaler.get_scale())\n",
            ),
        ),
        "o0-scaled",
        "unscaled twice",
    ),
    "divided twice by the accumulation steps": Wrong(
        ACCUMULATION,
        (("amp.scaler.scale(loss)", "amp.scaler.scale(loss / steps_per_update)"),),
        "o0-exact",
        "It is 2 times smaller",
    ),
    "updated after every batch": Wrong(
        ACCUMULATION,
        (("if (i + 1) % steps_per_update == 0:", "if True:"),),
        "o0-exact",
        "step once, in the original not at all",
    ),
    "loader not prepared": Wrong(
        PLAIN,
        ((LOADER, LOADER.replace("amp.prepare_loader(", "").replace("))", ")")),),
        "shares",
        "read the same samples",
        TOGETHER,
    ),
    "shares that overlap": Wrong(
        PLAIN,
        (
            (
                "    train_loader = amp.prepare_loader(",
                "    torch.manual_seed(1 + 10 * amp.rank())\n    train_loader = (",
            ),
            ("DataLoader(make_spirals(24)", "DataLoader(dataset"),
            ("    torch.manual_seed(1)\n", "    torch.manual_seed(1)\n    dataset = make_spirals(24)\n"),
        ),
        "shares",
        "more than one process",
        TOGETHER,
    ),
    "set_epoch left out": Wrong(PLAIN, ((LOADER, SAMPLER),), "new-order", "set_epoch", TOGETHER),
    "model not prepared": Wrong(PLAIN, (("amp.prepare_model(Net())", "Net()"),), "runs", "amp.prepare_model", TOGETHER),
    "model not prepared, stepped without the scaler": Wrong(
        PLAIN,
        (
            ("amp.prepare_model(Net())", "Net()"),
            ("amp.scaler.step(optimizer)", "optimizer.step()"),
        ),
        "ranks-agree",
        "not averaged",
        TOGETHER,
    ),
    "loss averaged twice": Wrong(
        ACCUMULATION,
        (("amp.scaler.scale(loss)", "amp.scaler.scale(loss / amp.world_size())"),),
        "one-process",
        "divided by the number of processes",
        TOGETHER,
    ),
    "loss averaged twice in a script's own DDP": Wrong(
        DISTRIBUTED,
        (("loss = criterion(model(x), y)", "loss = criterion(model(x), y) / dist.get_world_size()"),),
        "together-exact",
        "the loss of step 1",
        TOGETHER,
    ),
    "own DDP left out": Wrong(
        DISTRIBUTED,
        (("DDP(amp.prepare_model(nn.Sequential(", "(amp.prepare_model(nn.Sequential("),),
        "together-exact",
        "norm",
        TOGETHER,
    ),
    "gradients summed over the processes": Wrong(
        ACCUMULATION,
        (
            (
                "            amp.scaler.step(optimizer)\n",
                "            for parameter in model.parameters():\n"
                "                parameter.grad *= amp.world_size()\n"
                "            amp.scaler.step(optimizer)\n",
            ),
        ),
        "one-process",
        "summed over the processes",
        TOGETHER,
    ),
    "learning rate times the number of processes": Wrong(
        PLAIN, (("lr=0.5", "lr=0.5 * amp.world_size()"),), "one-process", "The learning rate is 1,", TOGETHER
    ),
    "batch norm not synchronised": Wrong(
        PLAIN,
        (("amp.prepare_model(Net())", "amp.prepare_model(Net(), sync_bn=False)"),),
        "sync-bn",
        "not synchronised",
        TOGETHER,
    ),
    "batch norm synchronised after DDP": Wrong(
        PLAIN,
        (
            (
                "amp.prepare_model(Net())",
                "amp.convert_sync_batchnorm(amp.prepare_model(Net(), sync_bn=False))",
            ),
        ),
        "sync-bn",
        "after the model was wrapped",
        TOGETHER,
    ),
    "own sampler without set_epoch": Wrong(
        DISTRIBUTED, (("        sampler.set_epoch(epoch)\n", ""),), "together-exact", "the loss of step", TOGETHER
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_rewrite_is_found(kind: str, verified: Any) -> None:
    wrong = WRONG[kind]
    status, evidence = verified(wrong.script, wrong.edits, *wrong.options)
    messages = {check["id"]: check["message"] for check in evidence["checks"] if check["verdict"] == "disproved"}
    assert wrong.by in messages, evidence["checks"]
    assert wrong.words in messages[wrong.by]
    assert (status, evidence["verdict"]) == (1, "disproved")


@pytest.mark.parametrize("script", [PLAIN, ACCUMULATION, DISTRIBUTED])
def test_the_right_one_is_proved(script: str, verified: Any) -> None:
    status, evidence = verified(script, (), "--levels", "O0,O1,O2", "--procs", "2")
    assert (status, evidence["verdict"]) == (0, "proved"), evidence["checks"]
    assert {check["verdict"] for check in evidence["checks"]} == {"proved"}, evidence["checks"]
    ids = {check["id"] for check in evidence["checks"]}
    assert ids >= {"runs", "o0-exact", "o0-scaled", "o1-band", "o2-band", "o1-half", "o2-half"}
    together = {"ranks-agree", "shares", "new-order", "one-process"}
    assert ids >= ({"together-exact"} if script == DISTRIBUTED else together)


def test_a_scaler_left_out_is_said_and_is_right_in_bfloat16(verified: Any) -> None:
    edits = (
        ("amp.scaler.scale(loss).backward()", "loss.backward()"),
        ("            amp.scaler.step(optimizer)\n            amp.scaler.update()\n", "            optimizer.step()\n"),
    )
    status, evidence = verified(ACCUMULATION, edits, *ALONE)
    checks = {check["id"]: check for check in evidence["checks"]}
    assert (status, checks["o0-exact"]["verdict"], checks["o0-scaled"]["verdict"]) == (0, "proved", "unproved")
    assert "No loss was scaled" in checks["o0-scaled"]["message"]


def test_each_kind_is_wrong_in_another_way() -> None:
    assert len(WRONG) >= 12
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
    } <= {wrong.by for wrong in WRONG.values()}
