"""A whole run: the scripts are decided on one by one, and what they want of the same files is joined.

Each script sees the files as they are on disk, so that the result does not depend on their order and they can be
decided on in several processes; one bad file never stops the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from amp_rules.folder.apex_users import with_other_starts
from amp_rules.folder.shared_modules import disturbs, join
from amp_rules.folder.torch_users import join_in_torch
from amp_rules.plan.declining import SHARED_MODULE
from amp_rules.plan.report import FileChange, Report
from amp_rules.source.text import SourceError, SourceFile, parse_source

from amp_migrate.launch.editing import edited
from amp_migrate.launch.launches import Launches
from amp_migrate.notebook.source import NotebookSource, load, source_of
from amp_migrate.problems import Problem
from amp_migrate.run.deciding import Decided, MigrationJob
from amp_migrate.run.decision_cache import DecisionCache
from amp_migrate.run.remembering import results_of

_CHANGED_MEANWHILE = "changed while it was being analysed; run again"
_RUNTIME = re.compile(r"^\s*(?:import|from) amp_runtime\b", re.MULTILINE)


@dataclass(frozen=True)
class Update:
    """One file as it is on disk and as it should become."""

    source: SourceFile
    text: str
    data: bytes


@dataclass
class Run:
    """What came of all scripts.

    Attributes:
        reports: one for each script that could be decided on, in the order of the scripts.
        updates: the files that change, each once, whatever number of scripts share it.
        problems: the files that were left as they were.
        launches: the commands that start the scripts which were migrated to several processes.
        reached: the files that the scripts lead to.
    """

    reports: list[Report] = field(default_factory=list)
    updates: dict[Path, Update] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    launches: Launches = field(default_factory=Launches)
    reached: frozenset[Path] = frozenset()

    def groups(self) -> list[list[Path]]:
        """Return the changed files, project by project: all files of one are written, or none."""
        from amp_migrate.projects import together

        joined = [[change.path.resolve() for change in report.changes] for report in self.reports]
        joined += [[launch.path.resolve(), *launch.scripts] for launch in self.launches.edited]
        return together(self.updates, joined)

    def inputs(self, group: Sequence[Path]) -> dict[Path, str]:
        """Return the files that a group's changes rest on and that the run leaves alone, with their hashes as read."""
        some = set(group)
        wanting = [report for report in self.reports if any(item.path.resolve() in some for item in report.changes)]
        read = {
            path.resolve(): known for report in wanting if report.reach for path, known in report.reach.read.items()
        }
        return {path: known for path, known in read.items() if path not in self.updates}

    @property
    def imports_runtime(self) -> bool:
        """Whether some file imports the runtime as it is changed; old interfaces alone are replaced by torch's."""
        return any(_RUNTIME.search(update.text) for update in self.updates.values())

    def edit_launches(self) -> None:
        """Have the commands that start the scripts edited, too, where that is certain."""
        for path, (source, text, done) in edited(self.launches.found).items():
            if not any(script in self.updates for launch in done for script in launch.scripts):
                continue
            self.updates[path] = Update(source, text, source.encode(text))
            self.launches.edited += done

    def begin_notebooks(self, line: str) -> None:
        """Have the first cell of each notebook that now imports the runtime begin with a line that installs it."""
        for path, update in self.updates.items():
            uses = [_RUNTIME.search(text) is not None for text in (update.source.text, update.text)]
            if isinstance(update.source, NotebookSource) and uses == [False, True]:
                source = replace(update.source, first_line=line)
                self.updates[path] = Update(source, update.text, source.encode(update.text))


def run_all(
    paths: Sequence[Path],
    plan: MigrationJob,
    *,
    leftovers: Sequence[Path] = (),
    jobs: int = 1,
    memory: DecisionCache | None = None,
    advance: Callable[[Path], None] = lambda path: None,
) -> Run:
    """Decide on every script, and join what they want.

    Args:
        paths: the scripts, in the order in which they are reported.
        plan: how they are decided on.
        leftovers: files to bring up to date where no script leads to them.
        jobs: number of processes; 0 for one a core.
        memory: what earlier runs found.
        advance: called for each script.
    """
    run = Run()
    decided = _decide(paths, plan, jobs, memory, advance)
    reaches = [result.report.reach for result in decided if result.report is not None]
    run.reached = frozenset(file for reach in reaches if reach is not None for file in reach.files)
    _keep(run, decided, plan)
    _again(run, plan, jobs)
    alone = [path for path in leftovers if path not in run.reached]
    if alone:
        # No script leads to them, so there is nothing to be done about a training step in them; what they share with
        # scripts they see as it will be.
        codes = ("AMP4", "AMP5") if plan.options.modernize else ("AMP4",)
        options = replace(plan.options, select=plan.options.select or codes, ddp=False)
        by_itself = replace(_changed(run, plan), options=options)
        _keep(run, _decide(alone, by_itself, jobs, None, advance), by_itself)
    for path in leftovers:
        if path in run.reached:
            advance(path)
    run.reports = with_other_starts(run.reports)
    return run


def _decide(
    paths: Sequence[Path],
    plan: MigrationJob,
    jobs: int,
    memory: DecisionCache | None = None,
    advance: Callable[[Path], None] = lambda path: None,
) -> list[Decided]:
    """Decide on scripts, or remember what was decided; in the order of ``paths``."""
    decided, _ = results_of(paths, lambda: plan, memory, jobs, advance)
    return [decided[path] for path in paths]


def _changed(run: Run, plan: MigrationJob) -> MigrationJob:
    """The plan for what sees the files as they will be."""
    changed = {path: source_of(update.data, path) for path, update in run.updates.items()}
    return replace(plan, given={**plan.given, **changed})


def _again(run: Run, plan: MigrationJob, jobs: int) -> None:
    """Decide once more on scripts that were left alone for the sake of another: it may have done what they need."""
    refused = [report for report in run.reports if any(item.code == SHARED_MODULE.code for item in report.refusals)]
    if not refused:
        return
    later = _changed(run, plan)
    kept = [report for report in run.reports if report not in refused]
    decided = _decide([report.entry for report in refused], later, jobs)
    better = {
        result.path: result
        for result in decided
        if result.report is not None and result.report.precision != "declined" and not disturbs(result.report, kept)
    }
    order = [report.entry for report in run.reports]
    run.reports = [report for report in run.reports if report.entry not in better]
    _keep(run, list(better.values()), later)
    run.reports.sort(key=lambda report: order.index(report.entry))


def _keep(run: Run, decided: Sequence[Decided], plan: MigrationJob) -> None:
    """Join what the scripts want; a change that cannot be made costs the scripts that want it."""
    run.problems += [result.problem for result in decided if result.problem is not None]
    found = [result.report for result in decided if result.report is not None]
    joined = join_in_torch(found, run.reports) if plan.options.target == "torch" else join(found)
    reports, updates, broken = joined.reports, dict[Path, Update](), set[Path]()
    for path, change in joined.changes.items():
        try:
            updates[path.resolve()] = _update(change, plan, run.updates.get(path.resolve()))
        except Exception as error:
            run.problems.append(Problem.from_exception(path, error, "the file was left as it was"))
            broken.add(path)
    while True:
        lost = [report for report in reports if any(change.path in broken for change in report.changes)]
        if not lost:
            break
        reports = [report for report in reports if report not in lost]
        # Whatever else they would change stays as it is too: half a migration is worse than none.
        for change in (change for report in lost for change in report.changes):
            updates.pop(change.path.resolve(), None)
            broken.add(change.path)
    run.reports += reports
    run.updates |= updates


def _update(change: FileChange, plan: MigrationJob, earlier: Update | None) -> Update:
    path = change.path.resolve()
    current = plan.given.get(path) or load(path)
    if current.text != change.before:
        raise SourceError(path, _CHANGED_MEANWHILE)
    data = current.encode(change.after)
    try:
        parse_source(SourceFile(path, data, change.after, current.encoding))
    except SourceError as error:
        # The user's file was sound, or it would not have got this far.
        raise RuntimeError(f"the new text of {path} does not parse ({error.message})") from error
    return Update(earlier.source if earlier else current, change.after, data)
