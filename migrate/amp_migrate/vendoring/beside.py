"""The copies of the runtime that the scripts of a run need beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from amp_rules.plan.report import Report
from amp_rules.source.text import SourceError

from amp_migrate.notebook.source import load
from amp_migrate.problems import Problem
from amp_migrate.run.foreign import is_runtime
from amp_migrate.run.migration import Run
from amp_migrate.vendoring.choosing import read_source
from amp_migrate.vendoring.copies import Copy, planned
from amp_migrate.vendoring.installed import runtime_folder
from amp_migrate.vendoring.uses import Uses, uses_of


@dataclass
class Beside:
    """What comes of the copies beside scripts.

    Attributes:
        copies: each with the folder that its scripts lie in.
        problems: the copies that must not be touched.
    """

    copies: list[Copy] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def of(self, paths: Iterable[Path]) -> list[Copy]:
        """The copies beside files."""
        folders = {path.parent for path in paths}
        return [copy for copy in self.copies if copy.path.parent in folders]


def copies_beside(run: Run, destinations: Mapping[Path, Path], level: str, *, in_place: bool) -> Beside:
    """Find out what each copy becomes; nothing is written, and the runtime is read only where it is needed.

    Args:
        run: what came of the scripts.
        destinations: where each changed file goes.
        level: the level that was asked for.
        in_place: whether files stay where they are, so that scripts which do not change count as well.

    Raises:
        UserError: the runtime is not installed.
    """
    uses: defaultdict[Path, Uses] = defaultdict(Uses)
    scripts: defaultdict[Path, set[str]] = defaultdict(set)
    for report in run.reports:
        destination = destinations.get(report.entry, report.entry if in_place else None)
        if destination is None:
            continue
        found = uses_of(_texts(run, report))
        if found:
            uses[destination.parent] |= found
            scripts[destination.parent].add(destination.name)
    beside = Beside()
    if not uses:
        return beside
    source, installed = read_source(runtime_folder()), _version()
    asked = Uses(levels=frozenset({level}))
    for folder in sorted(uses):
        made = planned(folder, uses[folder] | asked, scripts[folder], source, installed)
        if isinstance(made, Problem):
            beside.problems.append(made)
        else:
            beside.copies.append(made)
    return beside


def _texts(run: Run, report: Report) -> Iterable[str]:
    """The texts of all files that a script leads to, as they will be."""
    files = {report.entry, *(change.path for change in report.changes)}
    if report.reach is not None:
        files.update(report.reach.files)
    for path in sorted({path.resolve() for path in files}):
        update = run.updates.get(path)
        if update is not None:
            yield update.text
            continue
        if any(is_runtime(folder) for folder in path.parents):
            continue
        try:
            yield load(path).text
        except SourceError:  # it was said when the script was decided on
            continue


def _version() -> str:
    try:
        return version("amp-migrate")
    except PackageNotFoundError:
        return "of a checkout"
