"""Making the runs of a verification, one after the other."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from amp_migrate.problems import NothingShownError, UserError, shown
from amp_migrate.verify import failures, reading
from amp_migrate.verify.copies import CopiedProject, copy_project
from amp_migrate.verify.failures import Output
from amp_migrate.verify.interpreter import Interpreter
from amp_migrate.verify.plan import Planned
from amp_migrate.verify.processes import Outcome, Rank, run_together
from amp_migrate.verify.traces import Failure, RankTrace, Status, Trace
from amp_migrate.verify.written_files import Listing, listing, written_files
from amp_migrate.write.vendor import PACKAGE, copy_runtime, runtime_folder

RECORDER = Path(__file__).parent / "recorder"
STAND_IN = RECORDER / "stand_in"
_TRIES = 3
_END = 8192
_LARGEST_OUTPUT = 2**24
_DROP_IN = b"amp_runtime.apex"
# Left from a launch around this one, or made for another run.
_NOT_HANDED_ON = re.compile(
    r"AMP_|TORCHELASTIC_|PYTHONSTARTUP|"
    r"(?:LOCAL_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE|NAME)$|ROLE_|MASTER_(?:ADDR|PORT)$"
)


@dataclass(frozen=True)
class Settings:
    """What all runs have in common.

    Attributes:
        arguments: those of the script.
        interpreter: the Python that runs it.
        steps: backward calls of each run.
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
    steps: int
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
        settings: what all runs have in common.
        folder: where copies and records go.
        stand_in: whether a stand-in for Apex is put beside the original.
        launched: whether one process is started like a launch of one.
        tick: called now and then during a run.
    """

    project: CopiedProject
    migrated: Mapping[Path, bytes | None]
    original: Mapping[Path, bytes | None]
    settings: Settings
    folder: Path
    stand_in: bool = False
    launched: bool = False
    tick: Callable[[float], None] = lambda seconds: None
    _half_type: str | None = field(default=None, init=False)
    _runtime: Path | None = field(default=None, init=False)
    _imported_from: list[Path] = field(default_factory=list, init=False)

    def make(self, planned: Planned, batches: Joined | None = None) -> Trace:
        """Make one run.

        Args:
            planned: which.
            batches: what to read instead of the loaders' own.

        Raises:
            UserError: the project cannot be copied.
            NothingShownError: the script imports the project itself and not its copy.
        """
        for _ in range(_TRIES):
            trace = self._make(planned, batches)
            if not self._needs_another_try(planned, trace):
                break
        if self._half_type is None and trace.ranks:
            self._half_type = self._type_for(trace.ranks[0])
        return trace

    def _type_for(self, rank: RankTrace) -> str:
        """The half type by name, so that all runs have one: that of ``dtype="auto"`` on the device of the original.

        The drop-in for Apex takes Apex's float16 on every GPU.
        """
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
        if new or trace.failure is None:
            return bool(new)
        if planned.processes == 1 and not self.launched and failures.wants_launch(trace.failure):
            self.launched = True
            return True
        return (planned.processes > 1 or self.launched) and failures.port_was_taken(trace.failure)

    def _make(self, planned: Planned, batches: Joined | None) -> Trace:
        folder = self.folder / _slug(planned.name)
        shutil.rmtree(folder, ignore_errors=True)
        record, copy = folder / "record", folder / "project"
        record.mkdir(parents=True)
        copy_project(self.project, copy, self.settings.copy_limit, besides=self.folder)
        self._overlay(copy, self.migrated if planned.migrated else self.original)
        before = listing(copy)
        environment = self._environment(planned, record, copy)
        if batches is not None:
            path = folder / "batches.json"
            path.write_text(json.dumps(asdict(batches)), encoding="utf-8")
            environment["AMP_VERIFY_BATCHES"] = str(path)
        ranks = list(self._ranks(planned, environment, folder, copy))
        cwd = self.project.within(copy, self.project.cwd)
        try:
            outcome = run_together(
                ranks, cwd, timeout=self.settings.timeout, memory=self.settings.memory, tick=self.tick
            )
            return self._trace(planned, outcome, ranks, record, copy, before)
        finally:
            if not self.settings.keep:
                shutil.rmtree(copy, ignore_errors=True)

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

    def _environment(self, planned: Planned, record: Path, copy: Path) -> dict[str, str]:
        settings = self.settings
        environment = clean_environment()
        packages = [str(RECORDER)]
        if planned.migrated:
            packages.append(str(self._runtime_folder()))
        elif self.stand_in:
            packages.append(str(STAND_IN))
        named = [Path(entry) for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
        for path in [*self._imported_from, *named]:
            is_inside = path.is_relative_to(self.project.root)
            packages.append(str(self.project.within(copy, path) if is_inside else path))
        environment |= {
            "PYTHONPATH": os.pathsep.join(packages),
            "PYTHONHASHSEED": "0",
            "PYTHONIOENCODING": "utf-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": str(settings.threads),
            "MKL_NUM_THREADS": str(settings.threads),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "AMP_VERIFY_RECORD": str(record),
            "AMP_VERIFY_ROOT": str(copy),
            "AMP_VERIFY_PROJECT": str(self.project.root),
            "AMP_VERIFY_STEPS": str(settings.steps),
            "AMP_VERIFY_SEED": str(settings.seed),
        }
        # Nothing is shown in windows, and nothing sent anywhere, by a run that is only made to be compared.
        environment = {"MPLBACKEND": "Agg", "WANDB_MODE": "disabled", "WANDB_SILENT": "true"} | environment
        if planned.level is not None:
            environment["AMP_OPT_LEVEL"] = planned.level
        if planned.loss_scale is not None:
            environment["AMP_LOSS_SCALE"] = str(planned.loss_scale)
        if planned.migrated and self._half_type is not None:
            environment["AMP_DTYPE"] = self._half_type
        return environment

    def _runtime_folder(self) -> Path:
        """A folder with nothing but the runtime: beside it may lie packages for another Python."""
        if self._runtime is None:
            self._runtime = self.folder / "runtime"
            self._runtime.mkdir(exist_ok=True)
            if not (self._runtime / PACKAGE).exists() and (problem := copy_runtime(self._runtime, runtime_folder())):
                raise UserError(str(problem))
        return self._runtime

    def _ranks(self, planned: Planned, environment: dict[str, str], folder: Path, copy: Path) -> Iterator[Rank]:
        script = self.project.within(copy, self.project.script)
        program = ["-m", self.settings.module] if self.settings.module else [str(script)]
        command = (self.settings.interpreter.command, *program, *self.settings.arguments)
        port = str(_free_port()) if planned.processes > 1 or self.launched else ""
        for rank in range(planned.processes):
            launch = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(planned.processes),
                "LOCAL_WORLD_SIZE": str(planned.processes),
                "GROUP_RANK": "0",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            yield Rank(
                command, environment | (launch if port else {}), folder / f"stdout{rank}", folder / f"stderr{rank}"
            )

    def _trace(
        self,
        planned: Planned,
        outcome: Outcome,
        ranks: Sequence[Rank],
        record: Path,
        copy: Path,
        before: Listing,
    ) -> Trace:
        outputs = [
            Output(rank.stderr.read_text(encoding="utf-8", errors="replace"), status, _end_of(rank.stdout))
            for rank, status in zip(ranks, outcome.statuses, strict=True)
        ]
        recorded = reading.got_through(record)
        traces = reading.read_ranks(record, outcome.processes)
        status, failure = self._ending(planned, outcome, outputs, traces, copy, recorded=recorded)
        if status == "ended" and reading.was_stopped(record):
            status = "stopped"
        return Trace(
            name=planned.name,
            level=planned.level,
            processes=planned.processes,
            status=status,
            ranks=traces,
            failure=failure,
            batch_factor=planned.batch_factor,
            loss_scale=planned.loss_scale,
            seconds=outcome.seconds,
            steps=self.settings.steps,
            printed=tuple(self._printed(rank.stdout, copy) for rank in ranks),
            files=written_files(copy, before),
            folder=record.parent,
        )

    def _printed(self, path: Path, copy: Path) -> str:
        """What one process printed, with the user's own folder in place of the copy."""
        text = path.read_bytes()[:_LARGEST_OUTPUT].decode("utf-8", "replace")
        return text.replace(str(copy), str(self.project.root))

    def _ending(
        self,
        planned: Planned,
        outcome: Outcome,
        outputs: Sequence[Output],
        traces: Sequence[RankTrace],
        copy: Path,
        *,
        recorded: bool,
    ) -> tuple[Status, Failure | None]:
        steps = min((len(trace.backwards) for trace in traces), default=0)
        last = "\n".join(outputs[0].stderr.splitlines()[-20:])
        if outcome.how == "timeout":
            return "timeout", failures.out_of_time(self.settings.timeout, steps, self.settings.steps, last)
        if outcome.how == "memory":
            return "memory", failures.out_of_memory(self.settings.memory, last)
        if not all(failures.ended_well(output, recorded=recorded) for output in outputs):
            if outcome.how == "apart" and all(output.status in (0, None) for output in outputs):
                return "failed", failures.apart(outcome.order[0], last)
            cause = failures.first_cause(outputs, outcome.order)
            texts = self.migrated if planned.migrated else {}
            return "failed", failures.failure_of(
                cause, self.project, copy, self.settings.interpreter.command, lambda path: self._before(path, texts)
            )
        if steps == 0:
            return "failed", failures.no_backward(outputs[0], self.project, copy)
        return "ended", None

    def _before(self, path: Path, migrated: Mapping[Path, bytes | None]) -> str | None:
        if path not in migrated:
            return None
        data = self.original.get(path)
        try:
            return (path.read_bytes() if data is None else data).decode("utf-8", "replace")
        except OSError:
            return ""


def _end_of(path: Path) -> str:
    """The end of a text file that may be large."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _END))
        return file.read().decode("utf-8", "replace")


def clean_environment() -> dict[str, str]:
    """The environment without what would change a run from outside."""
    return {key: value for key, value in os.environ.items() if not _NOT_HANDED_ON.match(key)}


@dataclass(frozen=True)
class Joined:
    """What loaders are to read instead of their own batches; false where there is nothing.

    Attributes:
        batches: by number of the loader and pass, the samples of each batch.
        lengths: by number of the loader, how many batches it says that it has.
    """

    batches: Mapping[str, Sequence[Sequence[int]]]
    lengths: Mapping[str, int]

    def __bool__(self) -> bool:
        return bool(self.batches)


def joined_batches(together: Trace) -> Joined:
    """The batches that all ranks of a run read at the same time, made one, for the loaders that they shared out.

    A loader that every rank read alike stays out.
    """
    found: dict[str, list[list[list[int]]]] = {}
    lengths: dict[str, int] = {}
    for rank in together.ranks:
        for batch in rank.batches:
            pass_ = found.setdefault(f"{batch.loader}/{batch.epoch}", [[] for _ in together.ranks])
            pass_[rank.rank].append(list(batch.indices))
            if batch.length:
                lengths.setdefault(str(batch.loader), batch.length)
    joined = {}
    for key, ranks in found.items():
        # The run was ended from within: one rank may have asked for a batch that the others had not.
        count = min(map(len, ranks))
        whole = all(batch for batches in ranks for batch in batches[:count])
        if count and whole and any(batches[:count] != ranks[0][:count] for batches in ranks):
            joined[key] = [[index for batch in row for index in batch] for row in zip(*ranks, strict=False)]
    shared = {key.partition("/")[0] for key in joined}
    return Joined(joined, {number: length for number, length in lengths.items() if number in shared})


def _slug(name: str) -> str:
    return re.sub(r"\W+", "-", name).strip("-")


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
