"""What a run leaves alone, as a contract for continuous integration: known declines are told once, new ones count.

The file that lists the known ones has the form of a baseline of ``amp-lint``: file, code and text of the line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from amp_rules.plan.declining import ASKED_APEX, ASKED_DISTRIBUTION, ASKED_PRECISION
from amp_rules.plan.notes import NOT_SCALED
from amp_rules.plan.report import Note, Refusal, Report
from amp_rules.plan.skip_comments import MARK, Skip, skips_in
from amp_rules.source.modules import parse
from amp_rules.source.notebook import cells_in
from amp_rules.source.text import SourceError, SourceFile

from amp_migrate.lint.baseline import Baseline
from amp_migrate.notebook.source import load
from amp_migrate.run.migration import Run

_ON_PURPOSE = frozenset(rule.code for rule in (ASKED_PRECISION, ASKED_DISTRIBUTION, ASKED_APEX))


@dataclass(frozen=True)
class Left:
    """A step that is left in FP32: it was declined, or came into a migrated script later; with the text of its line."""

    finding: Refusal | Note
    line_text: str


@dataclass
class Declines:
    """What a run leaves alone.

    Attributes:
        all: every decline and every step that came later, each once.
        new: those that no baseline knows.
    """

    all: list[Left] = field(default_factory=list)
    new: list[Left] = field(default_factory=list)

    @property
    def known(self) -> int:
        """How many the baseline knows."""
        return len(self.all) - len(self.new)

    @property
    def added(self) -> list[Left]:
        """Those that no baseline knows and that came into a script after its migration."""
        return [item for item in self.new if item.finding.code == NOT_SCALED.code]


def declines_of(run: Run, baseline: Baseline | None, given: SourceFile | None) -> Declines:
    """Find what a run leaves alone; what the baseline knows is taken out of the reports, and is not told again."""
    texts = _Texts(run, given)
    found = dict.fromkeys(item for report in run.reports for item in _left(report))
    told = [Left(item, texts.line_of(item)) for item in found if not texts.keeps(item)]
    if baseline is None:
        return Declines(told, told)
    new = list(baseline.new(told))
    known = {item.finding for item in told} - {item.finding for item in new}
    run.reports = [
        replace(
            report,
            refusals=tuple(item for item in report.refusals if item not in known),
            notes=tuple(item for item in report.notes if item not in known),
        )
        for report in run.reports
    ]
    return Declines(told, new)


def _left(report: Report) -> Iterator[Refusal | Note]:
    """What is left of a script: neither what it has of its own, nor old names."""
    outcomes = {"precision": report.precision, "distribution": report.distribution}
    for item in report.refusals:
        if outcomes.get(item.unit) == "declined" and item.code not in _ON_PURPOSE:
            yield item
    yield from (item for item in report.notes if item.code == NOT_SCALED.code)


class _Texts:
    """The files that something was left in, as they were read."""

    def __init__(self, run: Run, given: SourceFile | None) -> None:
        self._run = run
        self._sources: dict[Path, SourceFile | None] = {given.path: given} if given is not None else {}
        self._skips: dict[Path, tuple[Skip, ...]] = {}

    def line_of(self, item: Refusal | Note) -> str:
        """The line on which it begins, with blanks made one."""
        source = self._source(item.path)
        if source is None or item.span is None:
            return ""
        cells = {cell.number: cell.text for cell in cells_in(source.text)} if item.cell is not None else {}
        text = source.text if item.cell is None else cells.get(item.cell, "")
        lines = text.splitlines()[item.span.start.line - 1 : item.span.start.line]
        return " ".join(" ".join(lines).split())

    def keeps(self, item: Refusal | Note) -> bool:
        """Whether a comment in the file keeps the place as it is: that is the user's choice, and no decline."""
        source = self._source(item.path)
        if source is None or item.cell is not None or MARK not in source.text:
            return False
        if item.path not in self._skips:
            try:
                self._skips[item.path] = skips_in(parse(source))
            except SourceError:
                self._skips[item.path] = ()
        line = item.span.start.line if item.span else 1
        return any(not skip.codes and skip.holds_for(line, line) for skip in self._skips[item.path])

    def _source(self, path: Path) -> SourceFile | None:
        if path not in self._sources:
            update = self._run.updates.get(path.resolve())
            try:
                self._sources[path] = update.source if update else load(path)
            except SourceError:
                self._sources[path] = None
        return self._sources[path]
