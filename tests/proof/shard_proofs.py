"""Migrates the same scripts with ``--shard`` and runs them in two processes, beside the ones whose models are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from proofs import PROJECTS, Migrated, Proofs, Run, Script, all_scripts, migrate_copy
from warm import Warm

_FULL = {"AMP_OPT_LEVEL": "O0"}


def distributed_scripts() -> list[Script]:
    """The scripts of the other proofs that get several processes."""
    return [script for script in (*all_scripts(), *all_scripts(PROJECTS)) if script.distribution == "migrated"]


class ShardProofs(Proofs):
    """Makes each result once, like its base, which makes the migrations without shards."""

    options: ClassVar[dict[str, Any]] = {"opt_level": "O1", "ddp": True, "shard": True}

    def __init__(self, cache: Path, warm: Warm, whole: Proofs) -> None:
        super().__init__(cache, warm)
        self._whole = whole

    def migrated(self, script: Script) -> Migrated:
        """The fixture after ``amp-migrate --shard``, of all scripts of its project."""
        entries = script.entries or (script.entry,)
        key = f"{script.folder.name}/migration"
        return self._once(key, lambda folder: migrate_copy(script.folder, entries, self.options, folder))[script.entry]

    def sharded(self, script: Script) -> Run:
        """It in two processes at O0."""
        return self._in_full_precision(script, self.migrated(script).folder, "sharded")

    def replicated(self, script: Script) -> Run:
        """The fixture with whole models in two processes at O0."""
        return self._in_full_precision(script, self._whole.migrated(script).folder, "replicated")

    def _in_full_precision(self, script: Script, project: Path, name: str) -> Run:
        key = f"{script.name}/{name}"
        return self._once(key, lambda folder: self._run_together(script.argv, project, folder, _FULL))


class TableProofs(ShardProofs):
    """The same with ``--shard-embeddings``."""

    options: ClassVar[dict[str, Any]] = {"opt_level": "O1", "ddp": True, "shard_embeddings": 1000}
