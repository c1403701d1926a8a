"""Runs a script before and after its migration, with verify's recorder in each process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from amp_migrate.verify.reading import complaints, read_ranks
from amp_migrate.verify.runs import RECORDER
from amp_migrate.verify.traces import RankTrace, WrittenFile
from amp_migrate.verify.written_files import written_files
from amp_rules import migrate
from amp_rules.plan.options import Options
from amp_rules.plan.report import Report
from warm import Start, Warm

SECONDS = 120
"""After this a run counts as hanging; a run takes about one."""

SCALE = 65536


@dataclass(frozen=True)
class Run:
    """What one run left.

    Attributes:
        statuses: of the processes, by rank.
        stdout: what each process printed.
        stderr: the same.
        ranks: what the recorder in each process saw.
        files: what the script wrote.
    """

    statuses: tuple[int, ...]
    in_time: bool
    stdout: tuple[str, ...]
    stderr: tuple[str, ...]
    ranks: tuple[RankTrace, ...]
    files: tuple[WrittenFile, ...] = ()

    @property
    def ended_well(self) -> bool:
        return self.in_time and not any(self.statuses) and bool(self.ranks)

    @property
    def why(self) -> str:
        """The last words of the processes that failed."""
        if not self.in_time:
            return f"did not end in {SECONDS} s"
        last = [
            text.strip().splitlines()[-1:] for text, status in zip(self.stderr, self.statuses, strict=True) if status
        ]
        return f"exit {self.statuses}: " + " | ".join(line[:200] for lines in last for line in lines)


@dataclass(frozen=True)
class Runs:
    """All runs of one script; of the migrated one by name: ``O0``, ``scaled``, ``together``, ``bf16``, ``fp16``."""

    report: Report
    original: Run
    migrated: Mapping[str, Run]


class Runner:
    """Makes runs in a folder of its own."""

    def __init__(self, warm: Warm, folder: Path) -> None:
        self.warm = warm
        self.folder = folder

    def runs(self, text: str, *, in_half: bool = False) -> Runs:
        """Run a script, migrate it, and run what came of it.

        Args:
            text: the script.
            in_half: at O1 too, in both half types.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        before = self.folder / "train.py"
        before.write_text(text, encoding="utf-8")
        report = migrate(before, Options(opt_level="O1", ddp=True))
        after = next((change.after for change in report.changes), None)
        return self.compared(report, text, after, in_half=in_half)

    def compared(self, report: Report, text: str, after: str | None, *, in_half: bool = False) -> Runs:
        """Run a script and what is said to be its migration."""
        original = self._alone("original", text, {})
        if after is None or not original.ended_well:
            return Runs(report, original, {})
        migrated = {
            "O0": self._alone("O0", after, {"AMP_OPT_LEVEL": "O0"}),
            "scaled": self._alone("scaled", after, {"AMP_OPT_LEVEL": "O0", "AMP_LOSS_SCALE": str(SCALE)}),
        }
        if report.distribution == "migrated":
            migrated["together"] = self._together(after)
        if in_half:
            migrated |= {kind: self._alone(kind, after, {"AMP_DTYPE": kind}) for kind in ("bf16", "fp16")}
        return Runs(report, original, migrated)

    def _alone(self, name: str, text: str, environment: dict[str, str]) -> Run:
        folder = self._prepared(name, text)
        start = Start(("train.py",), _environment(folder) | environment, folder / "out0", folder / "err0")
        ended = self.warm.run([start], folder / "work", seconds=SECONDS)
        return _read(folder, ended.statuses, ended.in_time)

    def _together(self, text: str) -> Run:
        folder = self._prepared("together", text)
        environment = _environment(folder) | {"AMP_OPT_LEVEL": "O0"}
        logs = [(folder / f"out{rank}", folder / f"err{rank}") for rank in range(2)]
        ended = self.warm.launch(["train.py"], environment, folder / "work", logs, seconds=SECONDS)
        return _read(folder, ended.statuses, ended.in_time)

    def _prepared(self, name: str, text: str) -> Path:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "work").mkdir(parents=True)
        (folder / "record").mkdir()
        (folder / "work" / "train.py").write_text(text, encoding="utf-8")
        return folder


def _environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AMP_", "PYTEST_", "TORCHELASTIC_"))}
    return kept | {
        "PYTHONPATH": str(RECORDER),
        "AMP_VERIFY_RECORD": str(folder / "record"),
        "AMP_VERIFY_ROOT": str(folder / "work"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "AMP_DTYPE": "bf16",
    }


def _read(folder: Path, statuses: tuple[int, ...], in_time: bool) -> Run:
    assert not (said := complaints(folder / "record")), said
    count = len(statuses)
    return Run(
        statuses,
        in_time,
        tuple((folder / f"out{rank}").read_text(encoding="utf-8") for rank in range(count)),
        tuple((folder / f"err{rank}").read_text(encoding="utf-8") for rank in range(count)),
        read_ranks(folder / "record"),
        tuple(file for file in written_files(folder / "work", {}) if not file.name.endswith(".py")),
    )
