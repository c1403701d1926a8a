"""Analysing one file, so that whatever it holds never stops the others."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from amp_rules.checks import all_checks
from amp_rules.lint import Linter, Mode
from amp_rules.lint.finding import Finding, by_place
from amp_rules.lint.resolved_edits import EditResolver
from amp_rules.source.digest import digest_of
from amp_rules.source.modules import parse
from amp_rules.source.text import SourceError, source_from_bytes

from amp_migrate.lint.catalogue import UNUSED_SUPPRESSION
from amp_migrate.lint.diagnostics import Diagnostic, FileResult, Replacement
from amp_migrate.lint.patches import patch_of
from amp_migrate.lint.suppress import Asked, suppress
from amp_migrate.notebook.reading import read_notebook
from amp_migrate.problems import Problem
from amp_migrate.run.discovery import NOTEBOOK
from amp_migrate.run.remembering import guarded

_NEWLINE = re.compile(r"\r\n|\r|\n")
# So many lines at the head of a long finding are kept for printing.
_SHOWN = 12
_CONTEXT = 1


@dataclass(frozen=True)
class LintJob:
    """What a process needs to know to analyse files.

    Attributes:
        codes: the rules to ask.
        names: the name of every rule that there is, by its code.
        timeout: seconds for one file; 0 for no bound.
    """

    mode: Mode
    codes: frozenset[str]
    names: Mapping[str, str]
    timeout: float
    parallel_from: int = 40
    longest_run: int = 16

    def start(self) -> Callable[[Path], FileResult]:
        """Load the rules, and return what judges one file."""
        return Judge(self).judge

    def lost(self, path: Path, reason: str) -> FileResult:
        """Return the result for a file that the analysis did not survive."""
        return FileResult(path, problem=Problem(path, f"{reason}; skipped"), lasting=False)


class Judge:
    """Analyses files, one after the other."""

    def __init__(self, job: LintJob) -> None:
        self.job = job
        # The linter looks for garbage by itself, and far less often than Python would.
        gc.disable()
        self.renew()
        own = {UNUSED_SUPPRESSION.code} & job.codes
        active = frozenset(check.code for check in self.linter.checks)
        possible = {check.code for check in all_checks() if check.applies(job.mode) and not check.preview}
        self.asked = Asked(active | own, job.names, possible <= active, str(job.mode))

    def renew(self) -> None:
        """Forget what other files held: they may have changed since."""
        self.linter = Linter(self.job.mode, all_checks(), self.job.codes)

    def judge(self, path: Path, data: bytes | None = None) -> FileResult:
        """Return what one file gives; ``data`` is its content where that is not on disk."""
        digest = ""

        def analysed() -> FileResult:
            nonlocal digest
            content = _read(path) if data is None else data
            digest = digest_of(content)
            return self._analyse(path, content, digest)

        def failed(problem: Problem, lasting: bool) -> FileResult:
            return FileResult(path, problem=problem, digest=digest, lasting=lasting)

        return guarded(path, self.job.timeout, "skipped", analysed, failed)

    def _analyse(self, path: Path, data: bytes, digest: str) -> FileResult:
        notebook = read_notebook(data, path) if path.suffix == NOTEBOOK else None
        source = notebook.source if notebook else source_from_bytes(data, path)
        cells = notebook.places if notebook else None
        result = self.linter.lint(source)
        outcome = suppress(source, result.findings, self.asked)
        found: list[Diagnostic] = []
        if outcome.findings or outcome.unused:
            lines = _NEWLINE.split(notebook.shown if notebook else source.text)
            fixable = any(finding.fix for finding in outcome.findings)
            resolver = EditResolver(parse(source)) if fixable else None
            for finding in outcome.findings:
                patch = patch_of(finding.fix, resolver) if finding.fix and resolver else None
                found.append(Diagnostic(finding, _excerpt(lines, finding, patch), patch, cells))
            for item in outcome.unused:
                found.append(Diagnostic(item.finding, _excerpt(lines, item.finding, item.patch), item.patch, cells))
        found.sort(key=lambda item: by_place(item.finding))
        problem = notebook.problem if notebook else None
        if result.failures:
            problem = Problem(path, f"internal error: {'; '.join(result.failures)}; please report")
        dependencies = tuple((str(name), known) for name, known in result.dependencies.items())
        return FileResult(path, tuple(found), problem, digest, dependencies)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror or error}") from error


def _excerpt(lines: Sequence[str], finding: Finding, patch: Sequence[Replacement] | None) -> dict[int, str]:
    """Return the lines that a reader or a format wants to see, by number."""
    first, last = finding.span.start.line, finding.span.end.line
    wanted = set(range(first - _CONTEXT, min(last, first + _SHOWN - 1) + _CONTEXT + 1)) | {last}
    for part in patch or ():
        wanted |= {part.span.start.line, part.span.end.line}
    return {number: lines[number - 1] for number in sorted(wanted) if 1 <= number <= len(lines)}
