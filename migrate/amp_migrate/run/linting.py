"""A whole run: from the cache, from the analysis, and what of it is reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from amp_rules.lint.finding import by_place

from amp_migrate.lint.catalogue import load_rules
from amp_migrate.lint.diagnostics import FileResult
from amp_migrate.lint.lint_run import LintRun
from amp_migrate.run.discovery import ignore_spec
from amp_migrate.run.finding_cache import FindingCache
from amp_migrate.run.remembering import results_of
from amp_migrate.settings.linting import LintSettings
from amp_migrate.settings.selected_rules import Selector, per_file

if TYPE_CHECKING:
    from amp_migrate.lint.baseline import Baseline
    from amp_migrate.run.judging import Judge, LintJob


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
        self.cache = FindingCache(settings.cache_folder if cached else None)
        self.rules = self.cache.rules(load_rules)
        selector = Selector(self.rules)
        self.codes = selector.codes(settings.layers, settings.preview)
        ignores = per_file(selector, settings.per_file_ignores, f"per-file-ignores of {settings.origin}")
        self.baseline = _baseline(settings.baseline) if settings.baseline and known else None
        self._ignores = [(ignore_spec([pattern]), codes) for pattern, codes in ignores]

    def job(self) -> LintJob:
        """What the analysis needs to know."""
        from amp_migrate.run.judging import LintJob

        return LintJob(
            self.settings.mode, self.codes, {rule.code: rule.name for rule in self.rules}, self.settings.timeout
        )

    def run(self, paths: Sequence[Path], advance: Callable[[Path], None] = lambda path: None) -> LintRun:
        """Analyse files, or take their results from the cache."""
        self.cache.open(self.settings.root, str(self.settings.mode), self.codes)
        results, cached = results_of(paths, self.job, self.cache, self.settings.jobs, advance)
        found = self.collect([results[path] for path in paths])
        found.cached = cached
        return found

    def run_text(self, path: Path, data: bytes) -> LintRun:
        """Analyse one text that is not on disk."""
        return self.collect([self.judge.judge(path, data)])

    @cached_property
    def judge(self) -> Judge:
        """What analyses texts in this process."""
        from amp_migrate.run.judging import Judge

        return Judge(self.job())

    def collect(self, results: Sequence[FileResult]) -> LintRun:
        """Gather what is to be reported, in an order that does not depend on how it was found."""
        run = LintRun(self.settings.mode, self.rules)
        run.files = len(results)
        for result in results:
            if result.problem:
                run.problems.append(result.problem)
                if not result.diagnostics and result.problem.cell is None:
                    # Of a notebook the other cells are judged.
                    run.unjudged.add(result.path)
            if result.diagnostics:
                ignored = self._ignored(result.path)
                run.diagnostics += [item for item in result.diagnostics if item.finding.code not in ignored]
        run.judged = run.files - len(run.unjudged)
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
