"""Making the runs of a verification, one after the other."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from amp_migrate.problems import NothingShownError, shown
from amp_migrate.verify import failures, reading
from amp_migrate.verify.budget import Bound, Budget
from amp_migrate.verify.by_hand import ByHand
from amp_migrate.verify.copies import CopiedProject, copy_project
from amp_migrate.verify.endings import Made
from amp_migrate.verify.environment import interpreter_environment, launched, search_path
from amp_migrate.verify.interpreter import Interpreter
from amp_migrate.verify.joined import Joined
from amp_migrate.verify.plain_torch import in_type
from amp_migrate.verify.plan import ORIGINAL, ORIGINAL_AGAIN, Planned
from amp_migrate.verify.processes import Fresh, Outcome, Rank, Starter, run_together
from amp_migrate.verify.runtime_copy import RuntimeCopy
from amp_migrate.verify.traces import RankTrace, Trace
from amp_migrate.verify.warm import UnfitError
from amp_migrate.verify.watching import Going, Watch
from amp_migrate.verify.written_files import listing

RECORDER = Path(__file__).parent / "recorder"
STAND_IN = RECORDER / "stand_in"
_TRIES = 5
# Seconds before the first step that are worth a branch of the process that runs are forked from.
_WORTH_REMEMBERING = 0.5
_DROP_IN = b"amp_runtime.apex"


class StartAgainError(Exception):
    """Runs have to be made again in new interpreters: one failed in a forked process, and does in one."""


@dataclass(frozen=True)
class Settings:
    """What all runs have in common.

    Attributes:
        arguments: those of the script.
        interpreter: the Python that runs it.
        timeout: seconds for each run.
        memory: bytes for all processes of a run.
        seed: of torch, random and numpy, where the script does not seed them itself.
        threads: of each process.
        copy_limit: bytes of each copy.
        keep: whether copies stay when a run is over.
        module: run as ``python -m``, by this name.
    """

    arguments: tuple[str, ...]
    interpreter: Interpreter
    timeout: float
    memory: int
    seed: int
    threads: int
    copy_limit: int
    keep: bool = False
    module: str | None = None


@dataclass
class Maker:
    """Makes runs of a project's original and migrated version.

    Attributes:
        project: what is copied for each run.
        migrated: what the migrated version has in place of files of the project; None for files that it does not have.
        original: the same for the original, where the project holds the migrated version.
        quantizing: the same for the migrated version that makes int8 models.
        settings: what all runs have in common.
        folder: where copies and records go.
        stand_in: whether a stand-in for Apex is put beside the original.
        launched: whether one process is started like a launch of one.
        tick: called now and then during a run.
        starter: what starts the processes.
        budget: how far each run goes.
        int8: see :class:`amp_migrate.verify.plan.Asked`.
        by_hand: what sets apart the runs of a version that was given, and of what the user launches.
    """

    project: CopiedProject
    migrated: Mapping[Path, bytes | None]
    original: Mapping[Path, bytes | None]
    settings: Settings
    folder: Path
    stand_in: bool = False
    launched: bool = False
    tick: Callable[[Going], None] = lambda going: None
    starter: Starter = field(default_factory=Fresh)
    budget: Budget = field(default_factory=Budget)
    _has_made: bool = field(default=False, init=False)
    _is_timed: bool = field(default=True, init=False)
    _losses: list[float] = field(default_factory=list, init=False)
    by_hand: ByHand = field(default_factory=ByHand)
    quantizing: Mapping[Path, bytes | None] = field(default_factory=dict)
    int8: str = ""
    _half_type: str | None = field(default=None, init=False)
    _imported_from: list[Path] = field(default_factory=list, init=False)

    @cached_property
    def _runtime(self) -> RuntimeCopy:
        return RuntimeCopy(self.folder / "runtime", self.settings.interpreter.command)

    def make(self, planned: Planned, batches: Joined | None = None) -> Trace:
        """Make one run.

        Args:
            planned: which.
            batches: what to read instead of the loaders' own.

        Raises:
            UserError: the project cannot be copied.
            NothingShownError: the script imports the project itself and not its copy.
            StartAgainError: what was made before has to be made again, too.
        """
        self.budget.started = self.starter.ready()
        began = time.monotonic()
        trace = self._tried(planned, batches)
        if planned.name == ORIGINAL_AGAIN and not self._repeats(trace) and self.starter.forget():
            # Where a script seeds before it imports what draws, a module that is there already draws no more.
            trace = self._tried(planned, batches)
        # The run to the script's end is not begun again because its time was up.
        again = ("failed",) if planned.quantizes else ("failed", "timeout")
        if trace.status in again and not isinstance(self.starter, Fresh):
            trace = self._tried_afresh(planned, batches)
        if planned.name == ORIGINAL:
            self._losses = trace.losses
            if trace.usable and trace.ranks[0].backwards[0].time > _WORTH_REMEMBERING:
                self.starter.remember(trace.ranks[0].imported)
        self._has_made = True
        self.budget.note(planned, trace, time.monotonic() - began)
        if self._half_type is None and trace.ranks:
            self._half_type = self._type_for(trace.ranks[0])
        return trace

    def _repeats(self, trace: Trace) -> bool:
        """Whether the losses are those of the original as far as they go."""
        return trace.losses == self._losses[: len(trace.losses)]

    def _tried(self, planned: Planned, batches: Joined | None) -> Trace:
        for _ in range(_TRIES):
            trace = self._make(planned, batches)
            if not self._needs_another_try(planned, trace):
                break
        return trace

    def _tried_afresh(self, planned: Planned, batches: Joined | None) -> Trace:
        """Make in new interpreters what failed in forked processes; what it says there is what counts."""
        forking, self.starter = self.starter, Fresh()
        # Most of the time would go by before the first step there.
        self._is_timed = False
        trace = self._tried(planned, batches)
        self._is_timed = True
        if not trace.usable:
            self.starter = forking
        elif self._has_made and not planned.quantizes:
            raise StartAgainError
        return trace

    @property
    def half_type(self) -> str | None:
        """The half type of all runs that name none; None before the original was run."""
        return self._half_type

    def _type_for(self, rank: RankTrace) -> str:
        """The half type by name, so that all runs have one: that of ``dtype="auto"`` on the device of the original.

        The drop-in for Apex takes Apex's float16 on every GPU.
        """
        by_hand = self.by_hand
        if by_hand.plain is not None:
            asked = by_hand.half_type if by_hand.plain.can_compute_in(by_hand.half_type or "") else None
            return asked or by_hand.plain.usual(rank.device) or rank.half_type
        if by_hand.half_type is not None:
            return by_hand.half_type
        drop_in = any(data is not None and _DROP_IN in data for data in self.migrated.values())
        return "fp16" if drop_in and rank.device != "cpu" else rank.half_type

    def _needs_another_try(self, planned: Planned, trace: Trace) -> bool:
        """Whether the run says nothing about the script, and can be made in a better way."""
        assert trace.folder is not None
        # The runtime lies in the workplace, and that may lie in the project.
        outside = [path for path in reading.outside(trace.folder / "record") if not path.is_relative_to(self.folder)]
        new = [path for path in outside if path not in self._imported_from]
        if outside and not new:
            raise NothingShownError(
                f"the script imports from {shown(outside[0])} whatever stands before it on the path, so a copy cannot "
                "be run; does it put that folder on sys.path itself?"
            )
        # As for packages that are installed editable.
        self._imported_from += new
        if new or self.by_hand.learn(planned, trace):
            return True
        if trace.failure is None:
            return False
        if planned.processes == 1 and not self.launched and failures.wants_launch(trace.failure):
            self.launched = True
            return True
        return (planned.processes > 1 or self.launched) and failures.port_was_taken(trace.failure)

    def notes(self) -> Iterator[str]:
        """What a reader has to know of how the runs were made."""
        if self.launched:
            yield "The script asks for what torchrun sets: its runs in one process are launches of one process."
        yield from self.by_hand.notes()
        yield from self.budget.notes()

    def _make(self, planned: Planned, batches: Joined | None) -> Trace:
        folder = self.folder / _slug(planned.name)
        shutil.rmtree(folder, ignore_errors=True)
        record, copy = folder / "record", folder / "project"
        record.mkdir(parents=True)
        copy_project(self.project, copy, self.settings.copy_limit, besides=self.folder)
        migrated = self.quantizing if planned.quantizes else self.migrated
        self._overlay(copy, migrated if planned.migrated else self.original)
        self._choose_type(planned, copy)
        before = listing(copy)
        bound = self.budget.bound(planned)
        if not self._is_timed:
            bound = replace(bound, seconds=None)
        environment = self._environment(planned, bound, record, copy)
        if batches is not None:
            path = folder / "batches.json"
            path.write_text(json.dumps(asdict(batches)), encoding="utf-8")
            environment["AMP_VERIFY_BATCHES"] = str(path)
        ranks = list(self._ranks(planned, environment, folder, copy))
        try:
            outcome = self._run(
                planned, bound, ranks, copy, Watch(record, self.by_hand.patience(self.budget.patience(planned)))
            )
            made = Made(
                planned,
                outcome,
                ranks,
                record,
                self.project,
                copy,
                self.settings.interpreter.command,
                bound.steps,
                self.settings.timeout,
                self.settings.memory,
                migrated,
                self.original,
                planned.half_type or self._half_type,
                before,
            )
            return self.by_hand.as_made(made.trace())
        finally:
            if not self.settings.keep:
                shutil.rmtree(copy, ignore_errors=True)

    def _run(self, planned: Planned, bound: Bound, ranks: list[Rank], copy: Path, watch: Watch) -> Outcome:
        def is_stuck(seconds: float) -> bool:
            if watch.look(seconds):
                self.tick(self.budget.going(planned, bound, seconds, watch.made))
            return watch.is_stuck(seconds)

        cwd = self.project.within(copy, self.project.cwd)
        bounds: dict[str, Any] = {"timeout": self.settings.timeout, "memory": self.settings.memory}
        try:
            return run_together(ranks, cwd, starter=self.starter, is_stuck=is_stuck, **bounds)
        except UnfitError:
            self.starter = Fresh()
            if self._has_made:
                raise StartAgainError from None
            return run_together(ranks, cwd, starter=self.starter, is_stuck=is_stuck, **bounds)

    def _overlay(self, copy: Path, files: Mapping[Path, bytes | None]) -> None:
        """Put the files of one version into a copy; those that it does not have go."""
        for path, data in files.items():
            target = self.project.within(copy, path)
            if data is None:
                target.unlink(missing_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            # Where a link was, what it leads to stays as it is.
            if target.is_symlink():
                target.unlink()
            elif target.exists():
                # It may be one that is only read, as in a checkout of Perforce.
                target.chmod(target.stat().st_mode | stat.S_IWUSR)
            target.write_bytes(data)

    def _choose_type(self, planned: Planned, copy: Path) -> None:
        """Let a version in plain PyTorch compute in a half type that it would take on another device."""
        half_type, files = self.by_hand.choice(planned) or ("", ())
        for path in files:
            target = self.project.within(copy, path)
            target.write_bytes(in_type(target.read_bytes(), half_type))

    def _ranks(self, planned: Planned, environment: dict[str, str], folder: Path, copy: Path) -> Iterator[Rank]:
        own = self.by_hand.script if planned.migrated else None
        module = self.settings.module if own is None else self.by_hand.module
        program = ["-m", module] if module else [str(self.project.within(copy, own or self.project.script))]
        count = self.by_hand.starts(planned)
        is_launch = count > 1 or (self.launched and planned.processes == 1)
        environments = launched(environment, count, _free_port()) if is_launch else [environment]
        for rank, of_rank in enumerate(environments):
            arguments = self.by_hand.arguments(planned, rank, self.settings.arguments)
            command = (self.settings.interpreter.command, *program, *arguments)
            yield Rank(command, of_rank, folder / f"stdout{rank}", folder / f"stderr{rank}")

    def _environment(self, planned: Planned, bound: Bound, record: Path, copy: Path) -> dict[str, str]:
        settings = self.settings
        first = [RECORDER]
        if self.by_hand.needs_runtime(planned):
            first.append(self._runtime.folder())
        if self.stand_in and not planned.migrated:
            first.append(STAND_IN)
        environment = interpreter_environment(settings.threads) | {
            "PYTHONPATH": search_path(self.project, copy, first, self._imported_from),
            "AMP_VERIFY_RECORD": str(record),
            "AMP_VERIFY_ROOT": str(copy),
            "AMP_VERIFY_PROJECT": str(self.project.root),
            "AMP_VERIFY_STEPS": str(bound.steps or 0),
            "AMP_VERIFY_SECONDS": str(bound.seconds or 0.0),
            "AMP_VERIFY_LEAST": str(bound.least),
            "AMP_VERIFY_SEED": str(settings.seed),
            # Where the runtime would stop, what follows is compared instead, to the line.
            "AMP_CHECK": "off",
        }
        if planned.level is not None:
            environment["AMP_OPT_LEVEL"] = planned.level
        if planned.loss_scale is not None:
            environment["AMP_LOSS_SCALE"] = str(planned.loss_scale)
        half_type = planned.half_type or self._half_type
        if planned.migrated and half_type is not None:
            environment["AMP_DTYPE"] = half_type
        if planned.migrated and (planned.processes > 1 or planned.loss_scale is not None):
            environment["AMP_VERIFY_WAYS"] = "1"
        if planned.plain_amp:
            environment["AMP_VERIFY_PLAIN_AMP"] = half_type or "bf16"
        if planned.name == ORIGINAL_AGAIN:
            # So that durations differ from the first run's, however they are rounded and called.
            environment["AMP_VERIFY_CLOCK"] = "3"
        if planned.quantizes:
            environment["AMP_VERIFY_INT8"] = "follow"
        elif planned.migrated and self.int8 == "given":
            environment["AMP_VERIFY_INT8"] = "off"
        environment.update(self.by_hand.environment(planned))
        return environment


def _slug(name: str) -> str:
    return re.sub(r"\W+", "-", name).strip("-")


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
