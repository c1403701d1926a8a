"""What a report says, as data: made of a migration and of the evidence for it, and laid out by others."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from amp_rules.plan.options import Options
from amp_rules.plan.report import Edit, Note, Outcome, Refusal

from amp_migrate.launch.launches import Launch, nearest_first
from amp_migrate.lint.diagnostics import Diagnostic
from amp_migrate.notebook.source import NotebookSource
from amp_migrate.out.terminal import plural
from amp_migrate.problems import Problem
from amp_migrate.projects import project_folder
from amp_migrate.report.findings import Findings, find
from amp_migrate.report.hunks import Comparison, Hunk, compare
from amp_migrate.report.measures import Measures, measures
from amp_migrate.report.rules import RuleNote, notes_on
from amp_migrate.run.migration import Run, Update
from amp_migrate.verify.checks.band import ID as BAND
from amp_migrate.verify.checks.common import percent
from amp_migrate.verify.checks.o0_exact import ID as EXACT
from amp_migrate.verify.evidence import IN_WORDS, Check, Evidence, Verdict
from amp_migrate.verify.plan import ORIGINAL
from amp_migrate.verify.words import in_the_way, reach, reach_label, speed_range, worst_first
from amp_migrate.write.transaction import undo_command

Tone = Literal["good", "bad", "open", "plain"]

TONES: Mapping[Verdict, Tone] = {"proved": "good", "disproved": "bad", "unproved": "open"}
VERDICTS: Mapping[Verdict, str] = {verdict: words.capitalize() for verdict, words in IN_WORDS.items()}


@dataclass(frozen=True)
class Migration:
    """What is reported on.

    A version that was not made by this program has no reports in its run: its hunks have no labels then.
    """

    run: Run
    options: Options = field(default_factory=Options)


@dataclass(frozen=True)
class Tile:
    """One number of the summary."""

    label: str
    value: str
    detail: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True)
class ScriptRow:
    """One entry script, and what was done for it."""

    name: str
    precision: Outcome
    distribution: Outcome
    files: int
    edits: int
    refusals: int
    notes: tuple[Remark, ...]


@dataclass(frozen=True)
class FilePart:
    """One changed file, cell by cell if it is a notebook; ``cells`` is the number of its code cells."""

    name: str
    comparisons: tuple[Comparison, ...]
    cells: int = 0

    @property
    def hunks(self) -> list[Hunk]:
        """Its hunks, from the first to the last."""
        return [hunk for comparison in self.comparisons for hunk in comparison.hunks]

    @property
    def added(self) -> int:
        """Number of lines that are new."""
        return sum(len(comparison.added) for comparison in self.comparisons)

    @property
    def removed(self) -> int:
        """Number of lines that are gone."""
        return sum(len(comparison.removed) for comparison in self.comparisons)

    @property
    def codes(self) -> list[str]:
        """The rules that changed it."""
        return sorted({label.code for hunk in self.hunks for label in hunk.labels})


@dataclass(frozen=True)
class ChangedPlace:
    """A hunk: its number on the page, counted from 1, and where it is."""

    number: int
    where: str


@dataclass(frozen=True)
class Remark:
    """Something about a place in the code.

    Attributes:
        where: the place.
        kind: how bad it is: a severity of the linter, ``refused``, ``note`` or ``error``.
        code: of the rule; empty for an error.
        name: of the rule.
        message: a sentence.
        advice: what to do about it, of several lines where it is about something that was left alone.
    """

    where: str
    kind: str
    code: str
    name: str
    message: str
    advice: str


@dataclass(frozen=True)
class Command:
    """A command that starts a migrated script; see :class:`amp_migrate.launch.launches.Launch`."""

    where: str
    command: str
    replacement: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Lint:
    """What the linter found, in the mode that is named."""

    mode: str
    changed: tuple[Remark, ...]
    elsewhere: tuple[Remark, ...]


@dataclass(frozen=True)
class Page:
    """Everything that a report says.

    Attributes:
        title: what was migrated.
        headline: the outcome in a few words.
        tone: of the headline.
        sentence: the outcome in one sentence.
        reach: how far the verdict reaches; empty where nothing was compared.
        reach_label: what stands before that.
        in_the_way: the checks that keep it from being proved.
        checks: all of them, those in the way first.
        tiles: the numbers of the summary.
        scripts: what was done for each, those that train first.
        files: the changed files.
        rules: the rules that had part in it, with the number of edits of each.
        places: the hunks that each of them made, by code.
        left: what was left alone, and the files that could not be dealt with.
        launches: commands that start the scripts in one process.
        lint: the linter's findings in the changed files.
        measures: of the verification.
        level: what was asked of the migration.
        version: of this program.
        undo: how the changes are taken back.
        reasons: what is known of the codes of what was left alone.
    """

    title: str
    headline: str
    tone: Tone
    sentence: str
    reach: str
    reach_label: str
    in_the_way: tuple[Check, ...]
    checks: tuple[Check, ...]
    tiles: tuple[Tile, ...]
    scripts: tuple[ScriptRow, ...]
    files: tuple[FilePart, ...]
    rules: tuple[tuple[RuleNote, int], ...]
    places: Mapping[str, list[ChangedPlace]]
    left: tuple[Remark, ...]
    launches: tuple[Command, ...]
    lint: Lint | None
    evidence: Evidence | None
    measures: Measures | None
    level: str
    version: str
    undo: tuple[str, ...]
    reasons: Mapping[str, RuleNote]


def page(migration: Migration, evidence: Evidence | None = None) -> Page:
    """Gather what a report on a migration says.

    Raises:
        UserError: the settings of ``amp-lint`` cannot be read.
    """
    run, options = migration.run, migration.options
    names = _Names(run)
    edits = {edit for report in run.reports for edit in report.edits}
    paths = sorted(run.updates)
    by_path = {path: _compared(run.updates[path], [e for e in edits if e.path.resolve() == path]) for path in paths}
    files = tuple(_file(names(path), run.updates[path], found) for path, found in by_path.items())
    changed = {(path, item.cell): item.added for path, found in by_path.items() for item in found}
    counts = Counter(edit.code for edit in edits)
    left = (
        *dict.fromkeys(_refused(item, names) for report in run.reports for item in report.refusals),
        *(_problem(item, names) for item in sorted(run.problems, key=str)),
    )
    measured = measures(evidence) if evidence else None
    headline, tone, sentence = _outcome(run, evidence)
    return Page(
        title=_title(run, evidence, names),
        headline=headline,
        tone=tone,
        sentence=sentence,
        reach=reach(evidence) if evidence else "",
        reach_label=reach_label(evidence.verdict) if evidence else "",
        in_the_way=in_the_way(evidence) if evidence else (),
        checks=worst_first(evidence.checks) if evidence else (),
        tiles=tuple(_tiles(files, evidence, measured, options.opt_level)) + _decided_tiles(run, counts, left),
        scripts=_scripts(run, names),
        files=files,
        rules=tuple((note, counts[code]) for code, note in notes_on(counts).items()),
        places=_places(files),
        left=left,
        launches=tuple(_command(launch, names) for launch in nearest_first(run.launches.left)),
        lint=_lint(find(run, options, changed), names) if run.updates else None,
        evidence=evidence,
        measures=measured,
        level=_level(options),
        version=version("amp-migrate"),
        reasons=notes_on(item.code for item in left),
        undo=tuple(dict.fromkeys(undo_command(project_folder(path)) for path in paths)),
    )


class _Names:
    """What files are called: by their place below the working directory, or below the folder of the project."""

    def __init__(self, run: Run) -> None:
        paths = [*run.updates, *(report.entry for report in run.reports)]
        self._base = Path.cwd()
        if paths and not all(path.is_relative_to(self._base) for path in paths):
            folders = {project_folder(path) for path in paths}
            self._base = Path(os.path.commonpath(folders)) if len({path.anchor for path in folders}) == 1 else Path()

    def __call__(self, path: Path) -> str:
        return path.relative_to(self._base).as_posix() if path.is_relative_to(self._base) else str(path)

    def place(self, path: Path, line: int | None = None, column: int | None = None, cell: int | None = None) -> str:
        """A place in a file: ``train.py:12:5``, ``train.ipynb:cell 3:2``."""
        numbers = [f"cell {cell}" if cell is not None else None, line, column]
        return ":".join([self(path), *(str(number) for number in numbers if number is not None)])


def _compared(update: Update, edits: list[Edit]) -> tuple[Comparison, ...]:
    edits.sort(key=lambda edit: (edit.span, edit.code, edit.message))
    if isinstance(update.source, NotebookSource):
        return tuple(
            compare(before, after, [edit for edit in edits if edit.cell == number], number)
            for number, before, after in update.source.changed_cells(update.text)
        )
    return (compare(update.source.text, update.text, edits),)


def _file(name: str, update: Update, comparisons: tuple[Comparison, ...]) -> FilePart:
    cells = len(update.source.notebook.cells) if isinstance(update.source, NotebookSource) else 0
    return FilePart(name, comparisons, cells)


def _places(files: Sequence[FilePart]) -> Mapping[str, list[ChangedPlace]]:
    found: defaultdict[str, list[ChangedPlace]] = defaultdict(list)
    number = 0
    for file in files:
        for comparison in file.comparisons:
            for hunk in comparison.hunks:
                number += 1
                cell = "" if comparison.cell is None else f"cell {comparison.cell}:"
                place = ChangedPlace(number, f"{file.name}:{cell}{hunk.first}")
                for code in sorted({label.code for label in hunk.labels}):
                    found[code].append(place)
    return dict(found)


def _refused(item: Refusal, names: _Names) -> Remark:
    where = names.place(item.path, item.span.start.line if item.span else None, cell=item.cell)
    return Remark(where, "refused", item.code, item.name, item.message, item.recipe)


def _note(item: Note, names: _Names) -> Remark:
    return Remark(names.place(item.path, item.line, cell=item.cell), "note", item.code, item.name, item.text, "")


def _problem(item: Problem, names: _Names) -> Remark:
    return Remark(names.place(item.path, item.line, item.column, item.cell), "error", "", "", item.message, "")


def _command(item: Launch, names: _Names) -> Command:
    return Command(names.place(item.path, item.line), item.command, item.replacement, item.notes)


def _lint(found: Findings, names: _Names) -> Lint:
    return Lint(
        found.mode,
        tuple(_finding(item, names) for item in found.changed),
        tuple(_finding(item, names) for item in found.elsewhere),
    )


def _finding(item: Diagnostic, names: _Names) -> Remark:
    finding, start = item.finding, item.start
    where = names.place(finding.path, start.line, start.column, start.cell)
    return Remark(where, finding.severity, finding.code, finding.name, finding.message, finding.advice)


def _scripts(run: Run, names: _Names) -> tuple[ScriptRow, ...]:
    rows = [
        ScriptRow(
            names(report.entry),
            report.precision,
            report.distribution,
            len({change.path for change in report.changes}),
            len(report.edits),
            len(report.refusals),
            tuple(_note(note, names) for note in report.notes),
        )
        for report in run.reports
    ]
    return tuple(sorted(rows, key=lambda row: (row.precision == "absent", row.name)))


def _level(options: Options) -> str:
    words = [options.opt_level, "several processes" if options.ddp else "one process"]
    if options.shard:
        words.append("models sharded")
    if options.ddp and options.shard_embeddings is not None:
        words.append(f"tables of {options.shard_embeddings} sharded by rows")
    if options.ddp and options.shard_eval:
        words.append("evaluations split across processes")
    if options.quantize is not None:
        words.append(f"int8 ({options.quantize})")
    if options.target == "torch":
        words.append("plain PyTorch")
    if options.dtype != "auto":
        words.append(options.dtype)
    if options.switch:
        words.append("an option of the script's own for the level")
    if options.modernize:
        words.append("old PyTorch brought up to date")
    return ", ".join(words)


def _title(run: Run, evidence: Evidence | None, names: _Names) -> str:
    if evidence:
        return f"Migration of {evidence.script}"
    training = [report for report in run.reports if report.precision != "absent"] or run.reports
    if len(training) == 1:
        return f"Migration of {names(training[0].entry)}"
    return f"Migration of {plural(len(training), 'script')}"


def _outcome(run: Run, evidence: Evidence | None) -> tuple[str, Tone, str]:
    if evidence:
        return VERDICTS[evidence.verdict], TONES[evidence.verdict], evidence.summary
    if not run.updates:
        if any(report.refusals for report in run.reports) or run.problems:
            return "Left as it is", "open", "No file was changed; what stood in the way is listed below."
        return "Nothing to change", "plain", "No file needs to be changed for what was asked."
    return "Not verified", "open", "Nothing was run yet: `amp-migrate verify` compares the script before and after."


def _tiles(files: Sequence[FilePart], evidence: Evidence | None, measured: Measures | None, level: str) -> list[Tile]:
    tiles = measured_tiles(evidence, measured, level) if evidence and measured else []
    hunks = sum(len(file.hunks) for file in files)
    lines = f"+{sum(file.added for file in files)} −{sum(file.removed for file in files)} lines"
    tiles.append(Tile("Changed", plural(len(files), "file"), f"{plural(hunks, 'hunk')}, {lines}"))
    return tiles


def _decided_tiles(run: Run, counts: Counter[str], left: Sequence[Remark]) -> tuple[Tile, ...]:
    """What the migration decided; nothing of versions that were given, of whose making nothing is known."""
    if not run.reports and not run.problems:
        return ()
    rules = Tile("Rules", str(len(counts)), plural(counts.total(), "edit"))
    return rules, Tile("Left alone", str(len(left)), "with a reason each" if left else "nothing was refused")


def measured_tiles(evidence: Evidence, measured: Measures, level: str) -> list[Tile]:
    """Return the numbers of a verification that are read first; of several levels ``level`` is told first."""
    tiles = []
    exact = next((check for check in evidence.checks if check.id == EXACT), None)
    if exact:
        words = {"proved": "Exact", "disproved": "Differs", "unproved": "Open"}
        steps = f"{plural(measured.compared, 'step')} in float32"
        tiles.append(Tile("O0 and original", words[exact.verdict], steps, TONES[exact.verdict]))
    rows = sorted(measured.levels, key=lambda row: row.run.level != level)
    if rows and measured.repeats:
        worst = max(row.run.deviation or 0.0 for row in rows)
        each = "; ".join(f"{row.run.name} {_brief(row.deviation)}" for row in rows)
        bands = {check.verdict for check in evidence.checks if check.id.endswith(f"-{BAND}")}
        order: tuple[Verdict, ...] = ("disproved", "unproved", "proved")
        tone: Tone = next((TONES[verdict] for verdict in order if verdict in bands), "plain")
        detail = f"{each}; up to {percent(evidence.tolerance)} allowed"
        tiles.append(Tile("Losses apart by", _brief(percent(worst)), detail, tone))
    speeds = sorted((item for item in evidence.speeds if item.beside == ORIGINAL), key=lambda item: item.run != level)
    if speeds:
        others = "; ".join(["the original's", *(f"{item.run} {speed_range(item)}" for item in speeds[1:])])
        tiles.append(Tile(f"Speed at {speeds[0].run}", speed_range(speeds[0]), others))
    return tiles


def _brief(words: str) -> str:
    return words.replace("less than", "<")
