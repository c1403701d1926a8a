"""Migrates the programs of fixtures/apex, by idiom and by imports, and runs them before and after."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from amp_migrate.verify.runs import STAND_IN
from proofs import ROOT, Migrated, Proofs, Run, migrate_copy, run_torchrun, tomllib

FIXTURES = ROOT / "fixtures" / "apex"
Mode = Literal["idiom", "compat"]


@dataclass(frozen=True)
class ApexScript:
    """One folder of fixtures/apex with what its expect.toml states.

    Attributes:
        off: arguments with which it trains in FP32 and without Apex.
        on: arguments with which it trains with Apex.
        more: arguments for more of Apex, beside ``on``, where FP32 knows nothing comparable.
        by: what ``--apex auto`` makes of it.
        unguarded: it imports Apex in any case, so that the FP32 run needs a stand-in.
        substitutes: without Apex it has a layer of its own in place of Apex's, with slightly other numbers.
        distributes: it starts several processes by itself.
        o0_rel_tol: allowed change of the last third of the losses from FP32 to O0; 0 is bit for bit.
        rel_tol: the same for O1 and O2.
    """

    name: str
    entry: str
    off: list[str]
    on: list[str]
    by: Mode
    more: list[str] = field(default_factory=list)
    unguarded: bool = False
    substitutes: bool = False
    distributes: bool = False
    o0_rel_tol: float = 0.0
    rel_tol: float = 0.03

    @property
    def folder(self) -> Path:
        return FIXTURES / self.name


def all_apex_scripts() -> list[ApexScript]:
    """Every folder of fixtures/apex, sorted by name."""
    found = sorted(FIXTURES.glob("*/expect.toml"))
    return [ApexScript(name=path.parent.name, **tomllib.loads(path.read_text(encoding="utf-8"))) for path in found]


class ApexProofs(Proofs):
    """Makes each result once, like its base."""

    def fp32(self, script: ApexScript) -> Run:
        """The fixture untouched, with Apex switched off."""
        packages = [STAND_IN] if script.unguarded else []
        argv = [script.entry, *script.off]
        key = f"{script.name}/fp32"
        return self._once(key, lambda folder: self._run(argv, script.folder, folder / "run", {}, packages))

    def by(self, script: ApexScript, mode: Mode | Literal["auto"]) -> Migrated:
        """The fixture after ``amp-migrate --apex MODE``."""
        options = {"apex": mode}
        key = f"{script.name}/{mode}"
        return self._once(
            key, lambda folder: migrate_copy(script.folder, [script.entry], options, folder)[script.entry]
        )

    def off(self, script: ApexScript, mode: Mode) -> Run:
        """The migrated fixture with the flag off."""
        return self._after(script, mode, "off", script.off, {})

    def at(self, script: ApexScript, mode: Mode, level: str) -> Run:
        """The migrated fixture with the flag on, at a level."""
        return self._after(script, mode, level, script.on, {"AMP_OPT_LEVEL": level})

    def with_more(self, script: ApexScript, mode: Mode) -> Run:
        """The migrated fixture with all that it has of Apex."""
        return self._after(script, mode, "more", [*script.on, *script.more], {})

    def together(self, script: ApexScript, mode: Mode) -> Run:  # type: ignore[override]
        """The migrated fixture in two processes, with the flag on and the level that it chooses."""
        argv = [script.entry, *script.on]
        project = self.by(script, mode).folder
        key = f"{script.name}/{mode}_together"
        return self._once(key, lambda folder: self._run_together(argv, project, folder))

    def by_torchrun(self, script: ApexScript, mode: Mode) -> Run:  # type: ignore[override]
        """The same by the launcher itself."""
        argv = [script.entry, *script.on]
        project = self.by(script, mode).folder
        key = f"{script.name}/{mode}_by_torchrun"
        return self._once(key, lambda folder: run_torchrun(argv, project, folder))

    def _after(self, script: ApexScript, mode: Mode, name: str, arguments: list[str], env: dict[str, str]) -> Run:
        project = self.by(script, mode).folder
        key = f"{script.name}/{mode}_{name}"
        argv = [script.entry, *arguments]
        return self._once(key, lambda folder: self._run(argv, project, folder / "run", env))
