"""What ``--shard-embeddings`` must keep: two processes with rows in parts train as two with whole tables do."""

from __future__ import annotations

import os

import pytest
from proofs import ROOT, Script, param
from shard_proofs import TableProofs
from test_proof import saved_files

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
    pytest.mark.slow,
]

FIXTURES = ROOT / "fixtures" / "AMP222"
SCRIPTS = [
    Script(name, FIXTURES / name, "before.py", precision="migrated", distribution="migrated")
    for name in ("kept_and_loaded", "optimizers_in_a_trainer", "wide_and_deep")
]


@pytest.mark.parametrize("script", [param(script) for script in SCRIPTS])
def test_rows_in_parts_train_and_save_as_whole_tables(script: Script, table_proofs: TableProofs) -> None:
    assert table_proofs.migrated(script).report.distribution == "migrated"
    parts, whole = table_proofs.sharded(script).check(), table_proofs.replicated(script).check()
    assert parts.losses == [pytest.approx(losses, rel=1e-4, abs=1e-6) for losses in whole.losses]
    assert saved_files(parts.folder) == saved_files(whole.folder)
