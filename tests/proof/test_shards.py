"""What ``--shard`` must keep of every script in fixtures/runnable and fixtures/projects, seen by running it."""

from __future__ import annotations

import os
from typing import Any

import pytest
from proofs import Script, param
from shard_proofs import ShardProofs, distributed_scripts

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the scripts run in forked processes"),
    pytest.mark.heavy,
]

SCRIPTS = distributed_scripts()
USUAL = {"flat_convnet", "gan_two_optimizers", "grad_accumulation", "engine_functions"}
"""What is run every time."""
DECLINED, SHARED_MODULE = "AMP295", "AMP390"


def scripts(usual: bool = True) -> pytest.MarkDecorator:
    params = [param(script, marks=() if usual or script.name in USUAL else [pytest.mark.slow]) for script in SCRIPTS]
    return pytest.mark.parametrize("script", params)


@scripts()
def test_a_script_is_sharded_or_the_reason_is_told(script: Script, shard_proofs: ShardProofs) -> None:
    report = shard_proofs.migrated(script).report
    if any(item.code == SHARED_MODULE for item in report.refusals):
        return  # another script of the project is sharded, and needs the module so
    assert report.precision == script.precision
    if report.distribution != "migrated":
        assert report.distribution == "declined"
        assert {item.code for item in report.refusals if item.unit == "distribution"} == {DECLINED}
        assert all(item.recipe for item in report.refusals)


def test_most_scripts_are_sharded(shard_proofs: ShardProofs) -> None:
    """Of those that get several processes."""
    found = [shard_proofs.migrated(script).report.distribution for script in SCRIPTS]
    assert found.count("migrated") > len(found) / 2


@scripts(usual=False)
def test_shards_train_to_the_same(script: Script, shard_proofs: ShardProofs) -> None:
    """Sums of gradients may be added up in another order: what is compared is equal within rounding."""
    if shard_proofs.migrated(script).report.distribution != "migrated":
        pytest.skip("not sharded")
    sharded, whole = shard_proofs.sharded(script).check(), shard_proofs.replicated(script).check()
    assert sharded.losses == [pytest.approx(losses, rel=1e-4, abs=1e-6) for losses in whole.losses]


@scripts(usual=False)
def test_shards_save_the_files_of_a_whole_model(script: Script, shard_proofs: ShardProofs) -> None:
    if shard_proofs.migrated(script).report.distribution != "migrated":
        pytest.skip("not sharded")
    sharded, whole = shard_proofs.sharded(script).check(), shard_proofs.replicated(script).check()
    assert _saved(sharded.folder) == _saved(whole.folder)


def _saved(folder: Any) -> dict[str, Any]:
    from test_proof import saved_files

    return saved_files(folder)
