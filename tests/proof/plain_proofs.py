"""Migrates the same scripts to plain PyTorch and runs them: alone, in two processes, and beside one that joins them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from amp_migrate.verify.evidence import Evidence
from amp_migrate.verify.joined import joined_batches
from amp_migrate.verify.plan import (
    O0,
    O0_TOGETHER,
    O1_TOGETHER,
    ORIGINAL,
    ORIGINAL_MERGED,
    ORIGINAL_TOGETHER,
    PLAIN_AMP,
    Asked,
)
from amp_migrate.verify.reading import read_ranks
from amp_migrate.verify.runs import STAND_IN
from amp_migrate.verify.traces import Failure, Trace
from amp_migrate.verify.verdict import judge
from amp_rules import migrate
from amp_rules.plan.options import Options
from amp_rules.plan.report import Report
from apex_proofs import ApexScript, all_apex_scripts
from proofs import HERE, PROJECTS, Migrated, Proofs, Run, Script, all_scripts, migrate_copy
from warm import Warm

WITHOUT_RUNTIME = HERE / "without_runtime"
"""A folder with something in place of the runtime that cannot be imported."""
LEVELED = MappingProxyType({"AMP_VERIFY_NATIVE": "leveled"})
"""What ``amp-migrate verify`` tells the recorder of versions that read their level themselves."""


def plain_scripts() -> list[Script]:
    """The scripts of the other proofs that change, those for Apex by idiom, with what they give in plain PyTorch."""
    return [*all_scripts(), *all_scripts(PROJECTS), *map(_of_apex, all_apex_scripts())]


def _of_apex(script: ApexScript) -> Script:
    return Script(
        name=f"apex_{script.name}",
        folder=script.folder,
        entry=script.entry,
        precision="migrated" if script.by == "idiom" else "declined",
        distribution="already" if script.distributes else "unknown",
        args=script.on,
        o1_rel_tol=script.rel_tol,
    )


class PlainProofs(Proofs):
    """Makes each result once, like its base, which makes the originals."""

    def __init__(self, cache: Path, warm: Warm, originals: Proofs) -> None:
        super().__init__(cache, warm)
        self._originals = originals
        self._of_apex = {f"apex_{script.name}": script for script in all_apex_scripts()}

    def migrated(self, script: Script) -> Migrated:
        """The fixture after ``amp-migrate --target torch --ddp``, of all scripts of its project."""
        entries = script.entries or (script.entry,)
        options = self._options(script)
        return self._once(
            f"{script.folder.name}/migration",
            lambda folder: migrate_copy(script.folder, entries, options, folder, twice=False),
        )[script.entry]

    def again(self, script: Script) -> Report:
        """What a second migration of it does."""
        path = self.migrated(script).folder / script.entry
        return self._once(f"{script.name}/again", lambda folder: migrate(path, Options(**self._options(script))))

    def _options(self, script: Script) -> dict[str, Any]:
        options: dict[str, Any] = {"opt_level": "O1", "ddp": True, "target": "torch"}
        return options | ({"apex": "idiom"} if script.name in self._of_apex else {})

    def original(self, script: Script, name: str = "first", **env: str) -> Run:
        """The fixture untouched; one for Apex with that switched off."""
        of_apex = self._of_apex.get(script.name)
        if of_apex is None:
            return self._originals.original(script, name, **env)
        packages = [STAND_IN] if of_apex.unguarded else []
        argv = [script.entry, *of_apex.off]
        key = f"{script.name}/original_{name}"
        return self._once(key, lambda folder: self._run(argv, script.folder, folder / "run", env, packages))

    def at(self, script: Script, level: str) -> Run:
        """The migrated fixture in one process."""
        project = self.migrated(script).folder
        env = {"AMP_OPT_LEVEL": level, **LEVELED}
        return self._once(
            f"{script.name}/{level}",
            lambda folder: self._run(script.argv, project, folder / "run", env, [WITHOUT_RUNTIME]),
        )

    def together_at(self, script: Script, level: str) -> Run:
        """The migrated fixture in two processes."""
        project = self.migrated(script).folder
        env = {"AMP_OPT_LEVEL": level, **LEVELED}
        return self._once(
            f"{script.name}/together_{level}",
            lambda folder: self._run_together(script.argv, project, folder, env, [WITHOUT_RUNTIME]),
        )

    def _run_together(
        self, argv: list[str], project: Path, folder: Path, env: Mapping[str, str] = {}, packages: Sequence[Path] = ()
    ) -> Run:
        """One run in two processes, of which each has its own output; that of rank 0 is the run's."""
        logs = [(folder / f"stdout{end}", folder / f"stderr{end}") for end in ("", "1")]
        return super()._run_together(argv, project, folder, env, packages, logs)

    def original_together(self, script: Script) -> Run:
        """The original in two processes, of a script that was written for them."""
        return self._once(
            f"{script.name}/original_together",
            lambda folder: self._run_together(script.argv, script.folder, folder),
        )

    def plain_autocast(self, script: Script) -> Run:
        """The original under torch's own autocast: what half precision does to it by itself."""
        env = {"AMP_VERIFY_PLAIN_AMP": "bf16", **LEVELED}
        return self.original(script, "plain_autocast", **env)

    def joined(self, script: Script) -> Run | None:
        """The original in one process on the batches that the samplers of two gave together; None if there are none."""
        ranks = read_ranks(record_of(self.together_at(script, "O0")))
        batches = joined_batches(Trace(O0_TOGETHER, "O0", len(ranks), "ended", ranks))
        if not batches:
            return None

        def make(folder: Path) -> Run:
            path = folder / "batches.json"
            path.write_text(json.dumps(asdict(batches)), encoding="utf-8")
            return self._run(script.argv, script.folder, folder / "run", {"AMP_VERIFY_BATCHES": str(path), **LEVELED})

        return self._once(f"{script.name}/joined", make)

    def judged(self, script: Script) -> Evidence:
        """What ``amp-migrate verify`` finds in these runs."""
        runs: dict[str, tuple[Run | None, str | None, int]] = {ORIGINAL: (self.original(script), None, 1)}
        runs |= {O0: (self.at(script, "O0"), "O0", 1), "O1": (self.at(script, "O1"), "O1", 1)}
        runs |= {PLAIN_AMP: (self.plain_autocast(script), None, 1)}
        report = self.migrated(script).report
        has_original = report.distribution == "already" and script.name not in self._of_apex
        if report.distribution == "migrated" or has_original:
            runs |= {O0_TOGETHER: (self.together_at(script, "O0"), "O0", 2)}
            runs |= {O1_TOGETHER: (self.together_at(script, "O1"), "O1", 2)}
        if has_original:
            runs |= {ORIGINAL_TOGETHER: (self.original_together(script), None, 2)}
        elif report.distribution == "migrated":
            runs |= {ORIGINAL_MERGED: (self.joined(script), None, 1)}
        traces = {name: _trace(name, *made) for name, made in runs.items() if made[0] is not None}
        asked = Asked(
            script.entry,
            levels=("O0", "O1"),
            tolerance=max(0.05, script.o1_rel_tol),
            precision=report.precision,
            distribution=report.distribution,
            native=True,
            target="torch",
            types=frozenset({"bf16", "fp16"}),
        )
        return judge(asked, traces)


def record_of(run: Run) -> Path:
    """Where the recorder wrote what a run did."""
    return run.folder.parent / "record"


def _trace(name: str, run: Run | None, level: str | None, processes: int) -> Trace:
    assert run is not None
    if run.status:
        return Trace(name, level, processes, "failed", failure=Failure(run.stderr.strip().rpartition("\n")[2]))
    ranks = read_ranks(record_of(run))
    factor = 2 if name == ORIGINAL_MERGED else 1
    half_type = "bf16" if level == "O1" or name == PLAIN_AMP else None
    printed = (run.stdout, *((run.folder.parent / f"stdout{rank.rank}").read_text() for rank in ranks[1:]))
    return Trace(name, level, processes, "ended", ranks, batch_factor=factor, half_type=half_type, printed=printed)


# ---- what plain PyTorch has no words for -----------------------------------------------------------------------------

NOT_IN_TORCH: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "globals_functions": {"distribution": "AMP392"},
        "grad_accumulation": {"distribution": "AMP392"},
        "model_method_loss": {"distribution": "AMP392"},
        "find_by_name": {"distribution": "AMP392"},
        "multi_loss_retain_graph": {"distribution": "AMP392"},
        "trainer_other_files": {"distribution": "AMP392"},
        "accumulator_decorators": {"distribution": "AMP392"},
        "build_from_cfg": {"distribution": "AMP392"},
        "config_template": {"distribution": "AMP392"},
        "engine_functions": {"distribution": "AMP392"},
        "gan_classes": {"distribution": "AMP392"},
        "networks_in_dict": {"distribution": "AMP392"},
        "samplers_everywhere": {"distribution": "AMP392"},
        "shared_entries:finetune": {"precision": "AMP392", "distribution": "AMP392"},
        "stream_callbacks": {"distribution": "AMP392"},
        "train_or_evaluate": {"distribution": "AMP392"},
        "two_stages": {"distribution": "AMP392"},
        "vars_and_eval": {"distribution": "AMP392"},
        "yacs_engine": {"distribution": "AMP392"},
        "apex_ascend_combined": {"precision": "AMP392"},
        "apex_fused_optimizer": {"precision": "AMP392"},
        "apex_larc_self_supervised": {"precision": "AMP392"},
        "apex_registered_functions": {"precision": "AMP392"},
        "apex_vit_scale_state": {"precision": "AMP392"},
    }
)
"""By script and unit, the code of what is migrated to the runtime and declined in plain PyTorch."""

EXTENDED = frozenset({"apex_finetune_guarded", "apex_language_model_delayed", "apex_vit_scale_state"})
"""Scripts with processes of their own, which lack something."""

READ_THE_LAUNCHER = frozenset({"apex_larc_self_supervised", "apex_vit_scale_state"})
"""Scripts that are declined, and whose processes read their rank as torchrun gives it."""

OPEN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "scheduled_optim_wrapper": ("rates",),
        "seq_package": ("contents", "rates"),
        "src_namespace": ("rates",),
        "state_engine": ("rates",),
        "wrapper_ema": ("rates",),
        "apex_imagenet_ddp": ("o0-printed",),
        "maps_and_attacks": ("o1-half",),
        "apex_trainer_attributes": ("together-ending",),
    }
)
"""By script, the checks of ``amp-migrate verify`` that cannot be decided on these runs."""
