"""A wide and deep model, migrated with ``--ddp --shard-embeddings``: N processes train as one with the N-fold batch."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from amp_rules import migrate
from amp_rules.plan.options import Options
from warm import Start, Warm

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
    pytest.mark.slow,
]

SCRIPT = Path(__file__).with_name("click_through") / "train.py"
BATCH = 64
ENVIRONMENT = {"AMP_OPT_LEVEL": "O0", "OMP_NUM_THREADS": "1"}
Trained = tuple[list[float], dict[str, torch.Tensor]]


def trained(text: str, ranks: int, folder: Path, warm: Warm) -> Trained:
    """The losses on held-out data, and the weights at the end; each rank reads its part of the same batches."""
    folder.mkdir()
    (folder / "train.py").write_text(text, encoding="utf-8")
    argv, environment = ["train.py", "--batch", str(BATCH // ranks)], {**os.environ, **ENVIRONMENT}
    logs = [(folder / f"out{rank}", folder / f"err{rank}") for rank in range(ranks)]
    if ranks == 1:
        ended = warm.run([Start(tuple(argv), environment, *logs[0])], folder, seconds=200)
    else:
        ended = warm.launch(argv, environment, folder, logs, seconds=200)
    assert not any(ended.statuses), [error.read_text(encoding="utf-8") for _, error in logs]
    lines = [line.split() for line in logs[0][0].read_text(encoding="utf-8").splitlines()]
    losses = [float(words[1]) for words in lines if len(words) == 2 and words[0].isdigit()]
    return losses, torch.load(folder / "model.pt", weights_only=True)


@pytest.fixture(scope="module")
def alone(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(SCRIPT.read_text(encoding="utf-8"), 1, tmp_path_factory.mktemp("clicks") / "alone", warm)


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> str:
    copy = tmp_path_factory.mktemp("clicks") / "train.py"
    shutil.copy(SCRIPT, copy)
    report = migrate(copy, Options(opt_level="O1", ddp=True, shard_embeddings=1000))
    assert report.distribution == "migrated", report
    return report.changes[0].after


def test_alone_it_is_the_original(migrated: str, alone: Trained, warm: Warm, tmp_path: Path) -> None:
    losses, weights = trained(migrated, 1, tmp_path / "migrated", warm)
    assert losses == alone[0]
    assert all(torch.equal(weights[name], weight) for name, weight in alone[1].items())


@pytest.mark.parametrize("ranks", [2, 4])
def test_processes_train_as_one_with_the_joined_batch(
    ranks: int, migrated: str, alone: Trained, warm: Warm, tmp_path: Path
) -> None:
    losses, weights = trained(migrated, ranks, tmp_path / "together", warm)
    assert len(losses) == 3 and alone[0][-1] < alone[0][0]
    assert losses == pytest.approx(alone[0], rel=1e-4)
    assert weights.keys() == alone[1].keys()
    for name, weight in alone[1].items():
        # Adam takes a whole step by the sign of a gradient that is rounded to nearly nothing.
        torch.testing.assert_close(
            weights[name], weight, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
