"""What a run of the linter found: what every format prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from amp_rules.lattice.mode import Mode
from amp_rules.lint.finding import by_place

from amp_migrate.lint.catalogue import RuleInfo
from amp_migrate.lint.diagnostics import Diagnostic
from amp_migrate.problems import Problem


@dataclass
class LintRun:
    """What a run found.

    Attributes:
        mode: in which the code was judged.
        rules: all that there are.
        diagnostics: what is reported, by place.
        problems: the files that could not be analysed.
        files: number of files looked at.
        judged: number of those that could be judged.
        unjudged: those of which nothing can be said, named files that are not there included.
        cached: number of those whose result an earlier run had found.
        known: number of findings that the baseline lists and that are not reported.
        stale: number of findings that the baseline lists of these files and that are not there any more.
        mended: number of files that fixes changed.
    """

    mode: Mode
    rules: tuple[RuleInfo, ...]
    diagnostics: list[Diagnostic] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    files: int = 0
    judged: int = 0
    unjudged: set[Path] = field(default_factory=set)
    cached: int = 0
    known: int = 0
    stale: int = 0
    mended: int = 0

    def replace(self, path: Path, newer: LintRun) -> None:
        """Take what a later run found in one file."""
        self.diagnostics = [item for item in self.diagnostics if item.finding.path != path] + newer.diagnostics
        self.diagnostics.sort(key=lambda item: by_place(item.finding))
