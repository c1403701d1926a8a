"""``amp-migrate verify`` of versions in plain PyTorch that read their level themselves: right ones, and broken ones."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from amp_migrate.commands.migrate import main
from amp_migrate.verify import checks, plain_torch, runs, what_to_do
from amp_migrate.verify.by_hand import ByHand
from amp_migrate.verify.evidence import Check, Evidence, from_json
from amp_migrate.verify.plain_torch import PlainTorch
from amp_migrate.verify.plan import LOSS_SCALE, Asked, Planned
from click.testing import CliRunner
from forked import Forked
from recording import Record

BY_HAND = Path(__file__).with_name("by_hand")
LEVELED = "train_leveled.py"
CHOICE = b"AMP_DTYPE = torch.float16 if torch.cuda.is_available() else torch.bfloat16\n"
ALONE = ("--procs", "1", "--levels", "O0")
HALF = ("--procs", "1", "--levels", "O0,O1")
TOGETHER = ("--procs", "2", "--levels", "O0")
Verified = Callable[..., Evidence]

runs_scripts = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
]


# ---- without running anything ----------------------------------------------------------------------------------------


def test_a_version_is_known_by_its_line() -> None:
    found = plain_torch.look_at([(Path("a.py"), CHOICE), (Path("b.py"), b"x = torch.float16\n")])
    assert found == PlainTorch(frozenset({"fp16", "bf16"}), (Path("a.py"),))
    assert (found.usual("cpu"), found.usual("NVIDIA H100")) == ("bf16", "fp16")
    fixed = plain_torch.look_at([(Path("a.py"), b"AMP_DTYPE = th.bfloat16\r\n")])
    assert (fixed.usual("cpu"), fixed.usual("NVIDIA H100")) == ("bf16", "bf16")
    assert (fixed.can_compute_in("bf16"), fixed.can_compute_in("fp16")) == (True, False)
    assert plain_torch.look_at([(Path("a.py"), b"")]).usual("cpu") is None


@pytest.mark.parametrize(("half_type", "name"), [("fp16", b"torch.float16"), ("bf16", b"torch.bfloat16")])
def test_a_choice_is_made_in_one_line(half_type: str, name: bytes) -> None:
    text = b"import torch\r\n" + CHOICE + b"x = torch.float16 if y else z\n"
    assert plain_torch.in_type(text, half_type) == text.replace(CHOICE, b"AMP_DTYPE = " + name + b"\n")
    assert plain_torch.in_type(b"AMP_DTYPE = torch.float16\n", half_type) == b"AMP_DTYPE = torch.float16\n"


def test_what_is_written_today_has_that_line(tmp_path: Path) -> None:
    from amp_rules import migrate
    from amp_rules.plan.options import Options

    shutil.copy(BY_HAND / "train.py", tmp_path)
    report = migrate(tmp_path / "train.py", Options(target="torch"))
    (change,) = report.changes
    found = plain_torch.look_at([(change.path, change.after.encode())])
    assert (found.types, found.choosing) == (frozenset({"fp16", "bf16"}), (change.path,))


def test_nothing_but_the_scaler_is_turned_on_from_outside() -> None:
    by_hand = ByHand(plain=PlainTorch(frozenset({"fp16", "bf16"}), (Path("a.py"),)))
    modes = [
        dict(by_hand.environment(planned))["AMP_VERIFY_NATIVE"]
        for planned in (Planned("O0", level="O0"), Planned("O1", level="O1"), Planned("s", loss_scale=LOSS_SCALE))
    ]
    assert modes == ["leveled", "leveled", "leveled, scaled"]
    assert by_hand.choice(Planned("O1", level="O1")) is None
    assert by_hand.choice(Planned("O1, fp16", level="O1", half_type="fp16")) == ("fp16", (Path("a.py"),))
    assert not by_hand.needs_runtime(Planned("O0", level="O0"))
    assert ByHand().needs_runtime(Planned("O0", level="O0"))


def test_every_word_about_the_runtime_has_one_about_torch() -> None:
    for path in Path(checks.__file__).parent.glob("*.py"):
        # What stands in a sentence: not in a docstring, nor a comment.
        text = re.sub(r'"""[\s\S]*?"""|#.*', "", path.read_text())
        text = re.sub(r'"\n\s*f?"', "", text)
        for sentence in re.findall(r'"[^"\n]*\bamp\.[a-z_]+[^"\n]*"', text):
            found = what_to_do.in_target(Check("x", "", "proved", sentence), Asked("x", native=True)).message
            assert not re.search(r"\bamp\.[a-z_]+", found), (path.name, found)
            assert what_to_do.in_target(Check("x", "", "proved", sentence), Asked("x")).message == sentence


# ---- by running ------------------------------------------------------------------------------------------------------


@pytest.fixture
def verified(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verified:
    """What is found out about the version beside train.py, in which texts are replaced."""
    monkeypatch.setattr(runs, "run_together", forked.run_together)
    project = tmp_path / "project"
    shutil.copytree(BY_HAND, project)
    monkeypatch.chdir(project)

    def verify(
        edits: tuple[tuple[str, str], ...], options: tuple[str, ...], before: tuple[tuple[str, str], ...] = ()
    ) -> Evidence:
        for name, pairs in (("train.py", before), (LEVELED, (*before, *edits))):
            text = Path(name).read_text(encoding="utf-8")
            for one, other in pairs:
                assert text.count(one) == 1, one
                text = text.replace(one, other)
            Path(name).write_text(text, encoding="utf-8")
        words = ["verify", "train.py", "--against", LEVELED, "--steps", "14", "--format", "json", "--quiet", *options]
        result = CliRunner().invoke(main, words)
        assert result.exit_code in (0, 1, 3), result.output
        return from_json(result.stdout)

    return verify


def verdicts(evidence: Evidence) -> dict[str, str]:
    return {check.id: check.verdict for check in evidence.checks}


def runs_scripts_in(*marks: pytest.MarkDecorator) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def marked(test: Callable[..., None]) -> Callable[..., None]:
        for mark in (*runs_scripts, *marks):
            test = mark(test)
        return test

    return marked


@runs_scripts_in()
def test_a_right_version_is_proved_and_the_verdict_says_what_it_is_made_of(verified: Verified) -> None:
    evidence = verified((), ())
    assert evidence.verdict == "proved", evidence.checks
    assert (evidence.target, "in plain PyTorch" in evidence.summary) == ("torch", True)
    expected = {"o0-exact", "o0-scaled", "scaler-updates", "o1-band", "o1-fp16-band", "meet", "shares", "one-process"}
    assert expected <= set(verdicts(evidence))
    scales = {run.name: set(run.scales) for run in evidence.runs}
    # In float16 the version's own scaler works; in bfloat16 it is off, and at O0 only where it is turned on.
    assert scales["O1, fp16"] and scales["O0, scaled"] == {LOSS_SCALE}
    assert not scales["O1"] and not scales["O0"]


SAMPLER = "    sampler = DistributedSampler(train_set) if WORLD_SIZE > 1 else None\n"
OPTIMIZER = "    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)\n"
DROPOUT = (("nn.Tanh(), ", "nn.Tanh(), nn.Dropout(0.3), "),)
WRONG: dict[str, tuple[tuple[tuple[str, str], ...], str, tuple[str, ...]]] = {
    # A version that is not off at O0 is not turned off from outside.
    "on at O0": ((("dtype=AMP_DTYPE, enabled=USE_AMP", "dtype=AMP_DTYPE"),), "o0-exact", ALONE),
    # Nor is the order of a sampler of one process put right.
    "a sampler alone": (
        ((SAMPLER, "    sampler = DistributedSampler(train_set, num_replicas=WORLD_SIZE, rank=RANK)\n"),),
        "o0-exact",
        ALONE,
    ),
    "clipped while scaled": ((("            scaler.unscale_(optimizer)\n", ""),), "o0-scaled", ALONE),
    "a loss outside of autocast": (
        (
            (
                "            with torch.autocast(DEVICE_TYPE, dtype=AMP_DTYPE, enabled=USE_AMP):\n",
                "            with torch.autocast(DEVICE_TYPE, dtype=AMP_DTYPE, enabled=USE_AMP):\n"
                "                pass\n            if True:\n",
            ),
        ),
        "o1-half",
        HALF,
    ),
    "not wrapped": (
        (("        model = DistributedDataParallel(", "        DistributedDataParallel("),),
        "ranks-agree",
        TOGETHER,
    ),
    "no sampler": (
        ((SAMPLER, "    sampler = None\n"), ("            sampler.set_epoch(epoch)\n", "            pass\n")),
        "shares",
        TOGETHER,
    ),
    "no set_epoch": ((("            sampler.set_epoch(epoch)\n", "            pass\n"),), "new-order", TOGETHER),
    "printed by all": ((("    if RANK != 0:\n", "    if RANK > 1:\n"),), "together-printed", TOGETHER),
    "a rate times N": (((OPTIMIZER, OPTIMIZER.replace("args.lr", "args.lr * WORLD_SIZE")),), "one-process", TOGETHER),
}


@runs_scripts_in(pytest.mark.campaign)
@pytest.mark.parametrize("name", WRONG)
def test_a_broken_version_is_disproved(name: str, verified: Verified) -> None:
    edits, by, options = WRONG[name]
    evidence = verified(edits, options)
    assert (evidence.verdict, verdicts(evidence).get(by)) == ("disproved", "disproved"), evidence.checks
    message = next(check.message for check in evidence.checks if check.id == by)
    assert "amp." not in message.replace("torch.amp.", "")


@runs_scripts_in(pytest.mark.campaign)
def test_a_version_that_names_its_type_is_compared_in_that_alone(verified: Verified) -> None:
    line = CHOICE.decode()
    evidence = verified(((line, "AMP_DTYPE = torch.bfloat16\n"),), HALF)
    assert "O1, fp16" not in {run.name for run in evidence.runs}
    assert "bfloat16" in evidence.reach and "float16 and" not in evidence.reach


@runs_scripts_in(pytest.mark.campaign)
def test_batch_norm_is_not_held_against_one_process_on_a_cpu_and_that_is_said(verified: Verified) -> None:
    norm = (("nn.Linear(4, 8), ", "nn.Linear(4, 8), nn.BatchNorm1d(8), "),)
    evidence = verified((), TOGETHER, norm)
    assert evidence.verdict != "disproved", evidence.checks
    assert "sync-bn" not in verdicts(evidence)
    assert any("no synchronised batch norm" in note for note in evidence.notes)


@runs_scripts_in(pytest.mark.campaign)
def test_masks_that_are_alike_on_all_ranks_are_open(verified: Verified) -> None:
    evidence = verified((), TOGETHER, DROPOUT)
    assert (evidence.verdict, verdicts(evidence)["noise"]) == ("unproved", "unproved")
    seeded = (("    optimizer = ", "    if WORLD_SIZE > 1:\n        torch.manual_seed(RANK)\n    optimizer = "),)
    Path(LEVELED).write_text((BY_HAND / LEVELED).read_text())
    Path("train.py").write_text((BY_HAND / "train.py").read_text())
    assert verdicts(verified(seeded, TOGETHER, DROPOUT))["noise"] == "proved"


LOADERS = """
from torch.utils.data.distributed import DistributedSampler

def shared(loader):
    sampler = DistributedSampler(loader.dataset, num_replicas=2, rank=0)
    return DataLoader(loader.dataset, batch_size=loader.batch_size, sampler=sampler)

first = DataLoader(data, batch_size=4, shuffle=True)
second = DataLoader(data, batch_size=2)
len(DataLoader(data, batch_size=8))
first = shared(first)
third = DataLoader(data, batch_size=4)
for loader in (third, second, first):
    next(iter(loader))
(model(torch.ones(1, 6)).sum()).backward()
"""


@runs_scripts_in()
@pytest.mark.parametrize(("native", "numbers"), [("leveled", [2, 1, 0]), ("", [4, 1, 3])])
def test_a_loader_that_is_made_again_keeps_its_number(record: Record, native: str, numbers: list[int]) -> None:
    assert [batch.loader for batch in record(LOADERS, native=native).rank.batches] == numbers
