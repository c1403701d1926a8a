"""Deciding on one script, so that whatever it holds never stops the others."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from amp_rules.plan.options import Options
from amp_rules.plan.report import Report
from amp_rules.source.files import Files
from amp_rules.source.text import SourceError, SourceFile

from amp_migrate.notebook.source import OtherLanguageError, load
from amp_migrate.problems import Problem
from amp_migrate.run.discovery import NOTEBOOK
from amp_migrate.run.remembering import guarded

# Seconds between looks for garbage, which syntax trees hardly make and of which Python would look at all each time.
_COLLECT_EVERY = 5.0


@dataclass(frozen=True)
class Decided:
    """What came of one script.

    Attributes:
        report: what was decided; None where it could not be, or there is nothing to decide on.
        problem: why it could not.
        lasting: whether the same files give the same again.
    """

    path: Path
    report: Report | None = None
    problem: Problem | None = None
    lasting: bool = True


@dataclass(frozen=True)
class MigrationJob:
    """What a process needs to know to decide on scripts.

    Attributes:
        options: what the migration is asked for.
        named: the scripts that the user wrote the very path of.
        given: texts that are not read from disk.
        timeout: seconds for one script; 0 for no bound.
        files: what is on disk, and parsed already.
    """

    options: Options
    named: frozenset[Path] = frozenset()
    given: dict[Path, SourceFile] = field(default_factory=dict)
    timeout: float = 0.0
    files: Files = field(default_factory=Files)
    parallel_from: int = 4
    longest_run: int = 4

    def start(self) -> Callable[[Path], Decided]:
        """Get ready to decide on scripts, which share the files that they import."""
        return Decider(self).decide

    def lost(self, path: Path, reason: str) -> Decided:
        """Return what came of a script that the analysis did not survive."""
        return Decided(path, problem=Problem(path, f"{reason}; the file was left as it was"), lasting=False)


class Decider:
    """Decides on scripts, one after the other."""

    def __init__(self, job: MigrationJob) -> None:
        self.job = job
        self._files = job.files.with_texts(job.given) if job.given else job.files
        self._collected = time.monotonic()

    def decide(self, path: Path) -> Decided:
        """Return what is to be done with one script."""
        was_enabled = gc.isenabled()
        gc.disable()
        # What the scripts before have left; what the last one leaves goes with the process.
        if time.monotonic() - self._collected > _COLLECT_EVERY:
            gc.collect()
            self._collected = time.monotonic()
        try:
            return guarded(
                path,
                self.job.timeout,
                "left as it was",
                lambda: Decided(path, self._decide(path)),
                lambda problem, lasting: Decided(path, problem=problem, lasting=lasting),
            )
        finally:
            if was_enabled:
                gc.enable()

    def _decide(self, path: Path) -> Report | None:
        import amp_rules

        is_named = path in self.job.named
        files = self._files
        try:
            if path.suffix == NOTEBOOK and path not in self.job.given:
                files = files.with_texts({path: load(path)})
            source = files.source(path)
        except OtherLanguageError:
            if is_named:
                raise
            return None
        if not source.text.strip():
            if is_named:
                raise SourceError(path, "is empty")
            return None
        try:
            return amp_rules.migrate(path, self.job.options, files=files)
        except SourceError as error:
            if self.job.options.modernize or error.path != path or not _is_old(source, error):
                raise
            message = f"{error.message}; --modernize replaces `async=`"
            raise SourceError(path, message, error.line, error.column, cell=error.cell) from error


def _is_old(source: SourceFile, error: SourceError) -> bool:
    """Whether what Python does not understand is the name that an argument had until PyTorch 0.4."""
    lines = source.text.splitlines()
    return error.line is not None and error.line <= len(lines) and "async=" in lines[error.line - 1].replace(" ", "")
