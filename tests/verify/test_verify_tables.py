"""``amp-migrate verify`` of tables whose rows are shared out: right ones are proved, and wrong ones found."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from amp_migrate.commands.migrate import main
from amp_migrate.verify import runs
from amp_migrate.verify.evidence import Evidence, from_json
from click.testing import CliRunner
from forked import Forked

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
]

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "AMP222" / "wide_and_deep"
Verified = Callable[..., Evidence]


@pytest.fixture
def verified(forked: Forked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verified:
    monkeypatch.setattr(runs, "run_together", forked.run_together)
    shutil.copy(FIXTURE / "before.py", tmp_path / "train.py")
    monkeypatch.chdir(tmp_path)

    def verify(*options: str, edits: tuple[tuple[str, str], ...] = ()) -> Evidence:
        text = (FIXTURE / "after.py").read_text(encoding="utf-8")
        for before, after in edits:
            assert text.count(before) == 1, before
            text = text.replace(before, after)
        Path("train_tables.py").write_text(text, encoding="utf-8")
        result = CliRunner().invoke(main, ["verify", "train.py", "--format", "json", "--quiet", *options])
        assert result.exit_code in (0, 1, 3), result.output
        return from_json(result.stdout)

    return verify


def verdicts(evidence: Evidence) -> dict[str, str]:
    return {check.id: check.verdict for check in evidence.checks}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--shard-embeddings", "1000"), id="migrated-now"),
        pytest.param(("--against", "train_tables.py"), id="against"),
        pytest.param(("--shard-embeddings", "1000", "--procs", "4", "--levels", "O0"), id="four-processes"),
    ],
)
def test_rows_in_parts_train_as_one_process_does(options: tuple[str, ...], verified: Verified) -> None:
    evidence = verified(*options)
    assert evidence.verdict == "proved", evidence.checks
    assert {"o0-exact", "ranks-agree", "one-process", "together-files"} <= set(verdicts(evidence))
    told = next(check.message for check in evidence.checks if check.id == "ranks-agree")
    assert "each has its own rows" in told
    assert any("O2 and O3" in note for note in evidence.notes) is ("--levels" not in options)


def test_one_process_has_whole_tables(verified: Verified) -> None:
    evidence = verified("--shard-embeddings", "1000", "--ddp", "--procs", "1", "--levels", "O0")
    assert evidence.verdict == "proved" and "one-process" not in verdicts(evidence)


UNSCALE = "            amp.scaler.unscale_(optimizer)\n"
WRONG = {
    "no model is prepared": ("    model = amp.prepare_model(model)\n", "", "runs", "disproved"),
    "one rank halves its gradients": (
        UNSCALE,
        f"{UNSCALE}            [p.grad.mul_(0.5) for p in model.head.parameters() if amp.rank()]\n",
        *("ranks-agree", "disproved"),
    ),
    "the rows of one rank stay": (
        UNSCALE,
        f"{UNSCALE}            [p.grad.zero_() for p in model.wide.parameters() if amp.rank()]\n",
        *("one-process", "unproved"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_not_proved(name: str, verified: Verified) -> None:
    before, after, id_, verdict = WRONG[name]
    evidence = verified("--against", "train_tables.py", "--levels", "O0", edits=((before, after),))
    assert (evidence.verdict, verdicts(evidence)[id_]) == (verdict, verdict), evidence.checks
