"""What ranks must have in common, and what not: found in runs of wrong migrations, and held in those of right ones.

Each script in ``planted`` is migrated by ``amp-migrate`` itself, and lines of the result are replaced.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from amp_migrate.verify.checks import buffers, draws, noise, rates, scaler_updates, shares, steering
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O0, O0_TOGETHER, ORIGINAL, Asked
from amp_migrate.verify.reading import complaints, read_ranks
from amp_migrate.verify.runs import RECORDER
from amp_migrate.verify.traces import Trace
from amp_rules import migrate
from amp_rules.plan.options import Options
from warm import Start, Warm

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
    pytest.mark.campaign,
]

PLANTED = Path(__file__).with_name("planted")
SPLIT, WEIGHTED, HAND_MADE = "split", "weighted", "hand_made"
CHECKS = (buffers, scaler_updates, steering, shares, draws, noise, rates)
ASKED = Asked("train.py")
BY_HAND = (
    ('amp.init(opt_level="O1")', 'amp.init(opt_level="O1", ddp=True)'),
    ("for step in range(20):\n", "amp.seed_by_rank()\nfor step in range(20):\n"),
)
"""What ``amp-migrate`` leaves to the author where batches are made by hand."""


class Recorded:
    """Makes recorded runs of a script and of its migration, those that are right only once."""

    def __init__(self, warm: Warm, folder: Path) -> None:
        self._warm = warm
        self._folder = folder
        self._made: dict[tuple[str, str, int, str], Trace] = {}
        self._migrated: dict[str, str] = {}

    def migrated(self, script: str) -> str:
        if script not in self._migrated:
            path = PLANTED / script / "train.py"
            report = migrate(path, Options(opt_level="O1", ddp=True))
            self._migrated[script] = edited(report.changes[0].after, BY_HAND if script == HAND_MADE else ())
        return self._migrated[script]

    def traces(self, script: str, migrated: str, original: str | None = None) -> dict[str, Trace]:
        original = original or (PLANTED / script / "train.py").read_text(encoding="utf-8")
        return {
            ORIGINAL: self._run(ORIGINAL, original, 1),
            O0: self._run(O0, migrated, 1),
            O0_TOGETHER: self._run(O0_TOGETHER, migrated, 2),
        }

    def _run(self, name: str, text: str, processes: int) -> Trace:
        key = (name, text, processes, "")
        if key not in self._made:
            folder = self._folder / str(len(self._made))
            (folder / "record").mkdir(parents=True)
            (folder / "train.py").write_text(text, encoding="utf-8")
            self._made[key] = self._recorded(name, folder, processes)
        return self._made[key]

    def _recorded(self, name: str, folder: Path, processes: int) -> Trace:
        environment = os.environ | {
            "PYTHONPATH": str(RECORDER),
            "AMP_VERIFY_RECORD": str(folder / "record"),
            "AMP_VERIFY_ROOT": str(folder),
            "AMP_VERIFY_SEED": "0",
            "AMP_OPT_LEVEL": "O0",
            "AMP_CHECK": "off",
            "OMP_NUM_THREADS": "1",
        }
        logs = [(folder / f"out{rank}", folder / f"err{rank}") for rank in range(processes)]
        if processes == 1:
            start = Start(("train.py",), environment, *logs[0])
            ended = self._warm.run([start], folder, seconds=100)
        else:
            ended = self._warm.launch(["train.py"], environment, folder, logs, seconds=100)
        errors = [error.read_text(encoding="utf-8") for _, error in logs]
        assert not any(ended.statuses), errors
        assert not complaints(folder / "record"), complaints(folder / "record")
        return Trace(name, None if name == ORIGINAL else "O0", processes, "ended", read_ranks(folder / "record"))


@pytest.fixture(scope="module")
def recorded(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(warm, tmp_path_factory.mktemp("ranks"))


def found(traces: dict[str, Trace]) -> dict[str, Check]:
    return {check.id: check for module in CHECKS for check in module.check(traces, ASKED)}


def edited(text: str, edits: Sequence[tuple[str, str]]) -> str:
    """The text with each part replaced, which it has exactly once."""
    for before, after in edits:
        assert text.count(before) == 1, f"{before!r} in\n{text}"
        text = text.replace(before, after)
    compile(text, "train.py", "exec")
    return text


@pytest.mark.parametrize("script", [SPLIT, WEIGHTED, HAND_MADE])
def test_what_is_right_is_proved(script: str, recorded: Recorded) -> None:
    checks = found(recorded.traces(script, recorded.migrated(script)))
    assert {check.verdict for check in checks.values()} == {"proved"}, checks
    ids = {SPLIT: {"draws", "noise", "rates"}, WEIGHTED: {"draws", "buffers", "rates"}, HAND_MADE: {"noise"}}
    assert checks.keys() >= {"scaler-updates", "steering", "shares", *ids[script]}


@dataclass(frozen=True)
class Wrong:
    """A wrong migration.

    Attributes:
        script: what was migrated.
        edits: what is replaced in the migrated script.
        by: the check that says so.
        words: a part of what it says.
        verdict: what it says.
    """

    script: str
    edits: tuple[tuple[str, str], ...]
    by: str
    words: str
    verdict: str = "disproved"


LOADER = "train_loader = amp.prepare_loader(DataLoader(training, batch_size=4, shuffle=True))\n"
OWN_SAMPLER = """\
sampler = None
if amp.world_size() > 1:
    from torch.utils.data.distributed import DistributedSampler
    sampler = DistributedSampler(training)
train_loader = DataLoader(training, batch_size=4, shuffle=sampler is None, sampler=sampler)
"""
WORKERS = OWN_SAMPLER.replace("sampler=sampler)", "sampler=sampler, num_workers=1)")
UPDATE = "        amp.scaler.update()\n"
WEIGHTS = "sampler=WeightedRandomSampler(weights, 128)"
PLATEAU = "    schedule.step(amp.reduce_mean(losses / len(loader)))\n"

WRONG = {
    "split drawn apart": Wrong(
        SPLIT,
        (
            (
                "training, validation = random_split",
                "data = Noisy()\ntorch.manual_seed(amp.rank())\ntraining, validation = random_split",
            ),
            ("(Noisy(), [64", "(data, [64"),
        ),
        "draws",
        "and then evaluated with",
    ),
    "trained on the validation data": Wrong(
        SPLIT,
        (("    for x, y in train_loader:", "    for x, y in train_loader if amp.world_size() == 1 else val_loader:"),),
        "draws",
        "that the original only evaluates with",
    ),
    "trained on everything": Wrong(
        SPLIT,
        ((LOADER, LOADER.replace("training,", "training if amp.world_size() == 1 else training.dataset,")),),
        "draws",
        "and then evaluated with",
    ),
    "trained on half of the data": Wrong(
        SPLIT,
        (
            (
                LOADER,
                LOADER.replace(
                    "(training,",
                    "(training if amp.world_size() == 1 else torch.utils.data.Subset(training, range(32)),",
                ),
            ),
        ),
        "draws",
        "the processes together about 32",
    ),
    "all ranks draw alike": Wrong(SPLIT, ((LOADER, OWN_SAMPLER),), "noise", "to fetch samples"),
    "all workers draw alike": Wrong(SPLIT, ((LOADER, WORKERS),), "noise", "same"),
    "schedule of the whole length": Wrong(
        SPLIT,
        (("total = EPOCHS * len(train_loader)", "total = EPOCHS * len(train_loader) * amp.world_size()"),),
        "rates",
        "counts steps",
        "unproved",
    ),
    "rate scaled by the number of processes": Wrong(
        SPLIT, (("lr=0.02", "lr=0.02 * amp.world_size()"),), "rates", "multiplied by the number of processes"
    ),
    "rates that differ between ranks": Wrong(
        SPLIT, (("lr=0.02", "lr=0.02 / (1 + amp.rank())"),), "steering", "learning rates differ"
    ),
    "scale never updated": Wrong(SPLIT, ((UPDATE, ""),), "scaler-updates", "not updated"),
    "scale updated once in an epoch": Wrong(
        SPLIT,
        ((UPDATE, ""), ("    model.eval()\n", "    amp.scaler.update()\n    model.eval()\n")),
        "scaler-updates",
        "not updated",
    ),
    "sampler left out": Wrong(WEIGHTED, ((WEIGHTS, "shuffle=True"),), "draws", "again and again"),
    "samples of equal weight": Wrong(
        WEIGHTED,
        ((WEIGHTS, "sampler=WeightedRandomSampler(weights if amp.world_size() == 1 else torch.ones(128), 128)"),),
        "draws",
        "other frequencies",
    ),
    "twice as many samples": Wrong(
        WEIGHTED, (("(weights, 128)", "(weights, 128 * amp.world_size())"),), "draws", "together"
    ),
    "schedule by a rank's own loss": Wrong(
        WEIGHTED, ((PLATEAU, PLATEAU.replace("amp.reduce_mean", "")),), "steering", "a number of each rank's own"
    ),
    "buffers changed on one rank": Wrong(
        WEIGHTED, ((PLATEAU, f"{PLATEAU}    next(model.buffers()).add_(amp.rank())\n"),), "buffers", "running_mean"
    ),
    "noise drawn alike": Wrong(
        SPLIT, (("0.01 * torch.randn(4)", "0.01 * amp.drawn_alike(torch.randn)(4)"),), "noise", "to fetch", "unproved"
    ),
    "a copy of its own on each rank": Wrong(
        SPLIT,
        (
            ("total = EPOCHS", "import copy\naverage = copy.deepcopy(model)\ntotal = EPOCHS"),
            (
                "        schedule.step()\n",
                "        schedule.step()\n        next(average.parameters()).data.add_(loss.detach())\n",
            ),
        ),
        "buffers",
        "copies of a model",
    ),
    "batches drawn alike": Wrong(HAND_MADE, (("amp.seed_by_rank()\n", ""),), "noise", "in its steps"),
    "the same batches on all ranks": Wrong(HAND_MADE, (("amp.seed_by_rank()\n", ""),), "shares", "the same loss"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_found(kind: str, recorded: Recorded) -> None:
    wrong = WRONG[kind]
    checks = found(recorded.traces(wrong.script, edited(recorded.migrated(wrong.script), wrong.edits)))
    assert wrong.by in checks, checks
    check = checks[wrong.by]
    assert (check.verdict, wrong.words in check.message) == (wrong.verdict, True), checks


def test_buffers_are_compared_alone_too(recorded: Recorded) -> None:
    edit = ("    losses = 0.0\n", "    losses = 0.0\n    model.eval()(x[:8])\n    model.train()(x[:8])\n")
    check = found(recorded.traces(WEIGHTED, edited(recorded.migrated(WEIGHTED), [edit])))["buffers"]
    assert (check.verdict, "At O0" in check.message, "num_batches_tracked" in check.message) == (
        "disproved",
        True,
        True,
    )
