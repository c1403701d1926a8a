"""A whole run: from the cache, from the analysis, and what of it is reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from amp_rules.lint.finding import by_place
from amp_rules.lint.mode import Mode

from amp_migrate.discovery import ignore_spec
from amp_migrate.lint.cache import Cache
from amp_migrate.lint.catalogue import RuleInfo, load_rules
from amp_migrate.lint.diagnostics import Diagnostic, FileResult
from amp_migrate.lint.selection import Selector, per_file
from amp_migrate.lint.settings import LintSettings
from amp_migrate.problems import Problem

if TYPE_CHECKING:
    from amp_migrate.lint.analysis import Analyst, Plan
    from amp_migrate.lint.baseline import Baseline


@dataclass
class LintRun:
    """What a run found.

    Attributes:
        mode: in which the code was judged.
        rules: all that there are.
        diagnostics: what is reported, by place.
        problems: the files that could not be analysed.
        files: number of files looked at.
        cached: number of those whose result an earlier run had found.
        known: number of findings that the baseline lists and that are not reported.
        stale: number of findings that the baseline lists of these files and that are not there any more.
    """

    mode: Mode
    rules: tuple[RuleInfo, ...]
    diagnostics: list[Diagnostic] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    files: int = 0
    cached: int = 0
    known: int = 0
    stale: int = 0

    def replace(self, path: Path, newer: LintRun) -> None:
        """Take what a later run found in one file."""
        self.diagnostics = [item for item in self.diagnostics if item.finding.path != path] + newer.diagnostics
        self.diagnostics.sort(key=lambda item: by_place(item.finding))


class Linting:
    """Runs with one set of settings: which rules they ask, and the results of files.

    Args:
        settings: what is asked for.
        cached: whether results are kept between runs.
        known: whether the findings of the baseline are left out.

    Raises:
        UserError: a selector matches no rule, or the baseline cannot be read.
    """

    def __init__(self, settings: LintSettings, *, cached: bool = True, known: bool = True) -> None:
        self.settings = settings
        self.cache = Cache(settings.cache_folder if cached else None)
        self.rules = self.cache.rules(load_rules)
        selector = Selector(self.rules)
        self.codes = selector.codes(settings.layers, settings.preview)
        ignores = per_file(selector, settings.per_file_ignores, f"per-file-ignores of {settings.origin}")
        self.baseline = _baseline(settings.baseline) if settings.baseline and known else None
        self._ignores = [(ignore_spec([pattern]), codes) for pattern, codes in ignores]

    @property
    def plan(self) -> Plan:
        """What the analysis needs to know."""
        from amp_migrate.lint.analysis import Plan

        return Plan(
            self.settings.mode, self.codes, {rule.code: rule.name for rule in self.rules}, self.settings.timeout
        )

    def run(self, paths: Sequence[Path], advance: Callable[[Path], None] = lambda path: None) -> LintRun:
        """Analyse files, or take their results from the cache."""
        self.cache.open(str(self.settings.mode), self.codes)
        results: list[FileResult] = []
        missing: list[Path] = []
        for path in paths:
            known = self.cache.lookup(path)
            if known is None:
                missing.append(path)
            else:
                results.append(known)
                advance(path)
        if missing:
            from amp_migrate.workers import run_all

            try:
                for result in run_all(missing, self.plan, self.settings.jobs, advance):
                    self.cache.store(result)
                    results.append(result)
            finally:
                self.cache.save()
        found = self.collect(results)
        found.cached = len(paths) - len(missing)
        return found

    def run_text(self, path: Path, data: bytes) -> LintRun:
        """Analyse one text that is not on disk."""
        return self.collect([self._analyst.analyse(path, data)])

    @cached_property
    def _analyst(self) -> Analyst:
        from amp_migrate.lint.analysis import Analyst

        return Analyst(self.plan)

    def collect(self, results: Sequence[FileResult]) -> LintRun:
        """Gather what is to be reported, in an order that does not depend on how it was found."""
        run = LintRun(self.settings.mode, self.rules)
        for result in results:
            run.files += 1
            if result.problem:
                run.problems.append(result.problem)
            if result.diagnostics:
                ignored = self._ignored(result.path)
                run.diagnostics += [item for item in result.diagnostics if item.finding.code not in ignored]
        run.diagnostics.sort(key=lambda item: by_place(item.finding))
        if self.baseline:
            new = list(self.baseline.new(run.diagnostics))
            files = [result.path for result in results if not result.problem]
            run.stale = self.baseline.stale(run.diagnostics, files, self.codes, str(run.mode)).total()
            run.known = len(run.diagnostics) - len(new)
            run.diagnostics = new
        run.diagnostics = [item for item in run.diagnostics if self.settings.reports(item.finding.severity)]
        run.problems.sort(key=lambda problem: (str(problem.path), problem.line or 0))
        return run

    def _ignored(self, path: Path) -> frozenset[str]:
        """Return the codes that are not reported in a file."""
        if not self._ignores or not path.is_relative_to(self.settings.root):
            return frozenset()
        name = path.relative_to(self.settings.root).as_posix()
        found = [codes for spec, codes in self._ignores if spec and spec.check_file(name).include]
        return frozenset().union(*found)


def _baseline(path: Path) -> Baseline:
    from amp_migrate.lint.baseline import read_baseline

    return read_baseline(path)
