"""Loaders in plain PyTorch, run: alone as the original, in two processes as the same script written by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options
from warm import ONE_THREAD, Start, Warm

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parents[2] / "fixtures" / "torch_by_hand" / "loaders"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.endswith("_by_hand"))
ENVIRONMENT = {**os.environ, **ONE_THREAD, "AMP_OPT_LEVEL": "O0", "PYTHONPATH": ""}
SECONDS = 240


def _run(warm: Warm, folder: Path, script: str, ranks: int) -> tuple[dict[str, object], str]:
    """What the script saves, and what its first process prints."""
    out = folder / f"{script}_{ranks}"
    logs = [(Path(f"{out}_{rank}.out"), Path(f"{out}_{rank}.err")) for rank in range(ranks)]
    argv = (str(folder / f"{script}.py"), f"{out}.pt")
    if ranks == 1:
        ended = warm.run([Start(argv, ENVIRONMENT, *logs[0])], folder, seconds=SECONDS)
    else:
        ended = warm.launch(argv, ENVIRONMENT, folder, logs, seconds=SECONDS)
    assert set(ended.statuses) == {0}, [path.read_text() for pair in logs for path in pair]
    return torch.load(f"{out}.pt"), logs[0][0].read_text()


def _is_same(one: dict[str, object], other: dict[str, object]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_loaders_are_those_that_one_writes_by_hand(warm: Warm, tmp_path: Path, name: str) -> None:
    original = FOLDER / f"{name}.py"
    report = migrate(original, Options(ddp=True, target="torch"))
    assert report.distribution == "migrated", report.refusals
    (change,) = report.changes
    (tmp_path / "original.py").write_text(change.before)
    (tmp_path / "migrated.py").write_text(change.after)
    (tmp_path / "by_hand.py").write_text(original.with_name(f"{name}_by_hand.py").read_text())

    saved, printed = _run(warm, tmp_path, "original", 1)
    again, printed_again = _run(warm, tmp_path, "migrated", 1)
    assert _is_same(saved, again) and printed == printed_again

    wanted, said = _run(warm, tmp_path, "by_hand", 2)
    found, printed = _run(warm, tmp_path, "migrated", 2)
    assert _is_same(wanted, found) and said == printed
    assert not _is_same(saved, found)
