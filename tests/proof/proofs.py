"""Migrates the runnable fixtures and projects and runs them before and after: the results that the tests look at."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from amp_migrate.verify.failures import GLOO_AT_EXIT
from amp_migrate.verify.reading import complaints, read_ranks
from amp_migrate.verify.runs import RECORDER
from warm import Start, Warm

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FIXTURES = ROOT / "fixtures" / "runnable"
PROJECTS = ROOT / "fixtures" / "projects"
TIMEOUT = 240


@dataclass(frozen=True)
class Script:
    """One folder of fixtures/runnable or fixtures/projects with what its expect.toml states.

    A project with several scripts is several of these: they share ``folder`` and are migrated together.

    Attributes:
        module: how the entry is run instead of by its path: ``python -m MODULE``.
        entries: all scripts of the project; empty when there is one.
        changed: the files that the migration changes, for projects.
        because: a part of the message that says why it is declined.
    """

    name: str
    folder: Path
    entry: str
    precision: str
    distribution: str
    args: list[str] = field(default_factory=list)
    o1_rel_tol: float = 0.05
    metric: str = "loss"
    module: str | None = None
    entries: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    because: str = ""

    @property
    def argv(self) -> list[str]:
        """What follows ``python`` on the command line."""
        return [*(["-m", self.module] if self.module else [self.entry]), *self.args]


@dataclass
class Run:
    """What one run left behind; ``losses`` and ``parameters`` hold one entry for each rank."""

    folder: Path
    status: int
    stdout: str
    stderr: str
    losses: list[list[float]] = field(default_factory=list)
    parameters: list[list[str]] = field(default_factory=list)

    def check(self) -> Run:
        """Fail with the script's own words if it did not end well."""
        assert self.status == 0, f"exit status {self.status} in {self.folder}\n{self.stdout}\n{self.stderr}"
        return self


@dataclass(frozen=True)
class Migrated:
    """A migrated project: the folder, the first report, and the report of a second migration, if one was made."""

    folder: Path
    report: Any
    again: Any


def all_scripts(root: Path = FIXTURES) -> list[Script]:
    """The scripts of every folder below ``root``, sorted by name."""
    scripts = []
    for path in sorted(root.glob("*/expect.toml")):
        stated = tomllib.loads(path.read_text(encoding="utf-8"))
        stated["changed"] = tuple(stated.get("changed", ()))
        entries = tuple(stated.pop("entries", ()))
        for entry in entries or (stated.pop("entry"),):
            name = f"{path.parent.name}:{Path(entry).stem}" if entries else path.parent.name
            # What differs between the scripts stands in a table of each one's name.
            own = {**stated, **stated.get(Path(entry).stem, {})}
            own = {key: value for key, value in own.items() if not isinstance(value, dict)}
            scripts.append(Script(name=name, folder=path.parent, entry=entry, entries=entries, **own))
    return scripts


def param(script: Any, *values: Any, marks: Sequence[pytest.MarkDecorator] = ()) -> ParameterSet:
    """A script of which one worker of pytest-xdist makes all results, so that none waits for another."""
    name = "-".join([script.name, *values])
    group = pytest.mark.xdist_group(script.folder.name)
    return pytest.param(script, *values, id=name, marks=[group, *marks])


class Proofs:
    """Makes each result once, also when several pytest workers ask for it: they share ``cache``."""

    def __init__(self, cache: Path, warm: Warm) -> None:
        self.cache = cache
        self._warm = warm

    def migrated(self, script: Script) -> Migrated:
        """The fixture after ``amp-migrate --opt-level O1 --ddp``, of all scripts of its project."""
        options = {"opt_level": "O1", "ddp": True}
        entries = script.entries or (script.entry,)
        key = f"{script.folder.name}/migration"
        return self._once(key, lambda folder: migrate_copy(script.folder, entries, options, folder))[script.entry]

    def original(self, script: Script, name: str = "first", **env: str) -> Run:
        """The fixture untouched; every name stands for a run of its own."""
        key = f"{script.name}/original_{name}"
        return self._once(key, lambda folder: self._run(script.argv, script.folder, folder / "run", env))

    def alone(self, script: Script) -> dict[str, Run]:
        """The migrated fixture in one process: at ``O0``, and at ``O1``, the level written into it."""
        project = self.migrated(script).folder
        jobs = {"O0": {"AMP_OPT_LEVEL": "O0"}, "O1": {}}
        key = f"{script.name}/alone"
        return self._once(
            key,
            lambda folder: {name: self._run(script.argv, project, folder / name, env) for name, env in jobs.items()},
        )

    def together(self, script: Script) -> Run:
        """The migrated fixture in two processes."""
        project = self.migrated(script).folder
        key = f"{script.name}/together"
        return self._once(key, lambda folder: self._run_together(script.argv, project, folder))

    def by_torchrun(self, script: Script) -> Run:
        """The same by the launcher itself, whose processes import everything anew."""
        project = self.migrated(script).folder
        key = f"{script.name}/by_torchrun"
        return self._once(key, lambda folder: run_torchrun(script.argv, project, folder))

    def _once(self, key: str, make: Callable[[Path], Any]) -> Any:
        folder = self.cache / key
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "lock"):
            done = folder / "result.pickle"
            if not done.exists():
                try:
                    result = make(folder)
                except Exception as error:
                    # Seen again by every test that needs it, instead of being tried again by each.
                    result = error
                done.write_bytes(pickle.dumps(result))
            result = pickle.loads(done.read_bytes())
        if isinstance(result, Exception):
            raise result
        return result

    def _run(
        self, argv: list[str], project: Path, folder: Path, env: dict[str, str], packages: Sequence[Path] = ()
    ) -> Run:
        """One run in one process; ``packages`` are folders to import from besides."""
        env = _environment(packages) | _prepare(project, folder) | env
        start = Start(tuple(argv), env, folder / "stdout", folder / "stderr")
        ended = self._warm.run([start], folder / "project", seconds=TIMEOUT)
        return _read(folder, ended.statuses[0], ended.in_time)

    def _run_together(
        self,
        argv: list[str],
        project: Path,
        folder: Path,
        env: Mapping[str, str] = {},
        packages: Sequence[Path] = (),
        logs: Sequence[tuple[Path, Path]] = (),
    ) -> Run:
        """The same in two processes; ``logs`` are their outputs, without which both write to the same."""
        env = _environment(packages) | _prepare(project, folder) | env
        logs = logs or [(folder / "stdout", folder / "stderr")] * 2
        ended = self._warm.launch(argv, env, folder / "project", logs, seconds=TIMEOUT)
        return _read(folder, ended.status, ended.in_time)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def migrate_copy(
    source: Path, entries: Sequence[str], options: dict[str, Any], folder: Path, *, twice: bool = True
) -> dict[str, Migrated]:
    """Migrate a copy of a fixture, twice unless told otherwise; the result for each of its scripts."""
    from amp_rules import migrate
    from amp_rules.folder.shared_modules import join
    from amp_rules.plan.options import Options
    from amp_rules.source.text import read_source

    project = folder / "project"
    shutil.rmtree(project, ignore_errors=True)
    _copy(source, project)
    asked = Options(**options)
    together = join([migrate(project / entry, asked) for entry in entries])
    for change in together.changes.values():
        change.path.write_bytes(read_source(change.path).encode(change.after))
    return {
        entry: Migrated(project, report, migrate(project / entry, asked) if twice else None)
        for entry, report in zip(entries, together.reports, strict=True)
    }


def run_torchrun(argv: list[str], project: Path, folder: Path) -> Run:
    """One run in two processes that torchrun starts.

    A thread of gloo can abort the interpreter while it shuts down, after the script has ended and every number is
    written: such a run is made again. Anything else that goes wrong stays.
    """
    for _ in range(3):
        run = _run_torchrun(argv, project, folder)
        ended = len(run.parameters) == 2 and all(run.parameters)
        if not (run.status and ended and GLOO_AT_EXIT in run.stderr):
            break
    return run


def _run_torchrun(argv: list[str], project: Path, folder: Path) -> Run:
    env = _environment() | _prepare(project, folder)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = _execute([*launcher, *argv], folder / "project", env)
    (folder / "stdout").write_text(process.stdout, encoding="utf-8")
    (folder / "stderr").write_text(process.stderr, encoding="utf-8")
    return _read(folder, process.returncode)


def _prepare(project: Path, folder: Path) -> dict[str, str]:
    """Copy the project for a run; the variables that are the run's own."""
    shutil.rmtree(folder / "project", ignore_errors=True)
    shutil.rmtree(folder / "record", ignore_errors=True)
    _copy(project, folder / "project")
    (folder / "record").mkdir()
    return {"AMP_VERIFY_RECORD": str(folder / "record"), "AMP_VERIFY_ROOT": str(folder / "project")}


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "expect.toml"))


def _environment(packages: Sequence[Path] = ()) -> dict[str, str]:
    unwanted = ("AMP_", "PYTEST_", "TORCHELASTIC_", "STEPS", "OUT", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    env = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
    folders = [*map(str, packages), str(RECORDER), os.environ.get("PYTHONPATH")]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    # One thread, so that sums are added in the same order; no GPU, so that results are the same anywhere.
    # A type by name: what is proved must not change with what a processor has.
    return env | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONIOENCODING": "utf-8",
        "AMP_DTYPE": "bf16",
    }


def _execute(command: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Like subprocess.run, but when time is up the grandchildren end too."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=TIMEOUT)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _read(folder: Path, status: int, in_time: bool = True) -> Run:
    stdout, stderr = ((folder / name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
    if not in_time:
        stderr += f"\nended after {TIMEOUT} s"
    run = Run(folder / "project", status, stdout, stderr)
    assert not (said := complaints(folder / "record")), said
    for rank in read_ranks(folder / "record"):
        run.losses.append([step.loss for step in rank.backwards])
        run.parameters.append(list(rank.parameters))
    return run
