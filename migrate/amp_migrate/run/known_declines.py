"""What a run leaves alone, as a contract for continuous integration: known declines are told once, new ones count.

The file that lists the known ones has the form of a baseline of ``amp-lint``: file, code and text of the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from amp_rules.plan.declining import NEEDS_PRECISION
from amp_rules.plan.notes import NOT_SCALED
from amp_rules.plan.options import Options
from amp_rules.plan.report import Note, Refusal, Report
from amp_rules.plan.skipped import ON_PURPOSE
from amp_rules.source.notebook import cells_in
from amp_rules.source.text import SourceError, SourceFile

from amp_migrate.lint.baseline import Baseline
from amp_migrate.notebook.source import load
from amp_migrate.run.migration import Run


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
        stale: number of entries of the baseline of whose step nothing is left.
    """

    all: list[Left] = field(default_factory=list)
    new: list[Left] = field(default_factory=list)
    stale: int = 0

    @property
    def known(self) -> int:
        """How many the baseline knows."""
        return len(self.all) - len(self.new)

    @property
    def added(self) -> list[Left]:
        """Those that no baseline knows and that came into a script after its migration."""
        return [item for item in self.new if item.finding.code == NOT_SCALED.code]


def mode_of(options: Options) -> str:
    """What was asked for, as far as it decides over what is declined: a baseline of another run has other entries."""
    return f"{options.opt_level}{' ddp' if options.ddp else ''}"


def declines_of(run: Run, baseline: Baseline | None, given: SourceFile | None, options: Options) -> Declines:
    """Find what a run leaves alone; what the baseline knows is taken out of the reports, and is not told again."""
    texts = _Texts(run, given)
    found = dict.fromkeys(item for report in run.reports for item in _left(report))
    told = [Left(item, texts.line_of(item)) for item in found]
    if baseline is None:
        return Declines(told, told)
    new = list(baseline.new(told))
    known = {item.finding for item in told} - {item.finding for item in new}
    places = {(item.path, item.cell, item.span) for item in known}
    run.reports = [
        replace(
            report,
            refusals=tuple(item for item in report.refusals if item not in known and not _is_again(item, places)),
            notes=tuple(item for item in report.notes if item not in known),
        )
        for report in run.reports
    ]
    return Declines(told, new, _stale(run, baseline, told, options))


def _stale(run: Run, baseline: Baseline, told: list[Left], options: Options) -> int:
    """How many entries are of a step that was declined, and is migrated, changed or gone by now."""
    if options.select or options.ignore:
        return 0  # what is not asked for is not judged
    judged = {*run.reached, *(report.entry for report in run.reports)}
    codes = frozenset(code for _, code, _ in baseline.known)
    return baseline.stale(told, judged, codes, mode_of(options)).total()


def _left(report: Report) -> Iterator[Refusal | Note]:
    """What is left of a script: neither what it has of its own, nor old names."""
    outcomes = {"precision": report.precision, "distribution": report.distribution}
    places = {(item.path, item.cell, item.span) for item in report.refusals if item.unit == "precision"}
    for item in report.refusals:
        is_open = outcomes.get(item.unit) == "declined" and item.code not in ON_PURPOSE
        if is_open and not _is_again(item, places):
            yield item
    yield from (item for item in report.notes if item.code == NOT_SCALED.code)


def _is_again(item: Refusal, places: Set[tuple[object, ...]]) -> bool:
    """Whether a refusal says that processes cannot be had without a step, which is declined at one of these places."""
    return item.code == NEEDS_PRECISION.code and (item.path, item.cell, item.span) in places


class _Texts:
    """The files that something was left in, as they were read."""

    def __init__(self, run: Run, given: SourceFile | None) -> None:
        self._run = run
        self._sources: dict[Path, SourceFile | None] = {given.path: given} if given is not None else {}

    def line_of(self, item: Refusal | Note) -> str:
        """The line on which it begins, with blanks made one."""
        source = self._source(item.path)
        if source is None or item.span is None:
            return ""
        cells = {cell.number: cell.text for cell in cells_in(source.text)} if item.cell is not None else {}
        text = source.text if item.cell is None else cells.get(item.cell, "")
        lines = text.splitlines()[item.span.start.line - 1 : item.span.start.line]
        return " ".join(" ".join(lines).split())

    def _source(self, path: Path) -> SourceFile | None:
        if path not in self._sources:
            update = self._run.updates.get(path.resolve())
            try:
                self._sources[path] = update.source if update else load(path)
            except SourceError:
                self._sources[path] = None
        return self._sources[path]
