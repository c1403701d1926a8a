"""What people read: the summary on standard error."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from amp_rules.plan.notes import NOT_SCALED, OWN_LEFT, OWN_PRECISION_STAYS
from amp_rules.plan.report import Edit, Note, Outcome, Refusal, Report, Unit
from amp_rules.plan.skipped import is_skipped

from amp_migrate.launch.launches import Launch, Launches, nearest_first
from amp_migrate.launch.started import started
from amp_migrate.out.asked_torch import (
    NEEDED,
    Asked,
    asked_older,
    has_list_for_pip,
    is_environment_of_conda,
    is_list_of_conda,
    lacks_runtime,
    needed_by_names,
    takes_lines_of_pip,
    takes_older,
)
from amp_migrate.out.terminal import Messages, plural
from amp_migrate.problems import place, shown
from amp_migrate.run.discovery import NOTEBOOK
from amp_migrate.run.migration import Run
from amp_migrate.run.scripts import Scripts
from amp_migrate.runtimes import other_runtime, trains_here

_LISTED = 12
# ``torchrun --nproc-per-node N``: the line says nothing of their number.
_LEFT_OPEN = re.compile(r"--nproc-per-node[\s=\",]+N\b")
# Of one script and unit: as many as somebody mends in one go. More would bury the first, which decides.
_MOST_REASONS = 5
_DONE: set[Outcome] = {"migrated", "extended"}
_WHY_O0 = "O0 here only joins the processes; the script's own mixed precision stays, and decides what runs in half"
_WITH_ARGUMENTS = ", with the arguments that you start it with"
_NOT_TRAINING: set[Outcome] = {"absent", "not requested", "not applicable"}
_STYLES: dict[Outcome, str] = {
    "migrated": "green",
    "extended": "green",
    "declined": "yellow",
    "already": "cyan",
    "absent": "dim",
    "not requested": "dim",
    "not applicable": "dim",
}


@dataclass(frozen=True)
class Failure:
    """Why a run that found no error fails.

    Attributes:
        due: number of files that ``--check`` would change.
        added: number of steps that came into a migrated script.
        declined: number of steps that were declined, where that fails.
        listing: the option that lists known steps.
    """

    due: int
    added: int
    declined: int
    listing: str

    def __bool__(self) -> bool:
        return bool(self.due or self.added or self.declined)


@dataclass
class Summary(Messages):
    """Prints what was done, what was left alone and why, and what to do next; ``verbose`` also lists every edit.

    Attributes:
        unwritten: the files that were to be written and could not be.
    """

    unwritten: frozenset[Path] = frozenset()

    def reports(self, reports: Sequence[Report], scripts: Scripts) -> None:
        """Print one paragraph for each entry script; of walked files only those that train."""
        alone = set(scripts.leftovers)
        told: set[Refusal] = set()
        noted: set[Note] = set()
        for report in reports:
            untouched = {report.precision, report.distribution} <= _NOT_TRAINING | {"already"}
            # What is noted of a script that was migrated before came into it since.
            # Of what was declined, nothing is left where a baseline knows all of it.
            known = "declined" in (report.precision, report.distribution) and not report.refusals
            untouched |= known and not report.notes
            silent = untouched and not report.changes and not (report.precision == "already" and report.notes)
            if silent and not self.verbose and report.entry not in scripts.named:
                continue
            self._report(report, told, noted, alone=report.entry in alone)

        if notebooks := [report.entry for report in reports if report.distribution == "not applicable"]:
            self.line(
                ("note: ", "bold"),
                f"a notebook runs in one process; for several, export it (`jupyter nbconvert --to script "
                f"{_word(notebooks[0])}`) and migrate the script with --ddp",
            )

    def found(self, scripts: Scripts, run: Run) -> None:
        """Print how many of a folder's files train."""
        if not scripts.files:
            return
        scanned = [report for report in run.reports if report.entry in set(scripts.chosen)]
        training = [
            report for report in scanned if report.precision != "absent" or report.distribution not in _NOT_TRAINING
        ]
        lines = plural(scripts.lines, "line")
        self.line((plural(len(training), "training script"), "bold"), f" in {plural(scripts.files, 'file')} ({lines})")

    def unreached(self, scripts: Scripts, run: Run) -> None:
        """Print which files hold a training step that none of the scripts leads to."""
        missed = [path for path in scripts.trainers if path not in run.reached and path not in scripts.chosen]
        for path in missed[:_LISTED]:
            self.line(
                ("note: ", "bold"),
                f"{shown(path)} has a training step, but no training script that was found imports it; "
                "name the file to migrate it",
            )
        if len(missed) > _LISTED:
            self.line(("note: ", "bold"), f"and {len(missed) - _LISTED} more such files")

    def failed(self, failure: Failure) -> None:
        """Print what fails a check, and what to do next."""
        parts, steps = [], []
        if failure.due:
            parts.append(f"{plural(failure.due, 'file')} {_be(failure.due)} due to change")
            steps.append("write what is due with -w in place of --check")
        left = []
        if failure.added:
            parts.append(f"{plural(failure.added, 'step')} came into a migrated script ({NOT_SCALED.code})")
            left.append("write each step as it says above")
        if failure.declined:
            parts.append(f"{plural(failure.declined, 'step')} {_be(failure.declined)} declined (--strict)")
            left.append("do by hand what is said above")
        if left:
            steps += [*left, "keep a step as it is with `# amp: skip`", f"or list it with {failure.listing}"]
        self.line(("failed: ", "red"), f"{'; '.join(parts)}. Next: {', '.join(steps)}")

    def counts(self, run: Run, *, fails: bool = False) -> None:
        """Print the number of edits, by rule; of what was to be written and could not be, none.

        Args:
            run: what came of all scripts.
            fails: whether the run fails by something else than what it changes, which is said then.
        """
        kept = run.updates.keys() - self.unwritten
        if not kept and fails:
            return
        if not kept:
            self.line("nothing was written" if run.updates else "nothing to change")
            return
        edits = {edit for report in run.reports for edit in report.edits if edit.path.resolve() not in self.unwritten}
        by_rule = Counter((edit.code, edit.name) for edit in edits)
        rules = ", ".join(f"{code} {name} {count}" for (code, name), count in sorted(by_rule.items()))
        numbers = f"{plural(len(edits), 'edit')} in {plural(len(kept), 'file')}"
        self.line((numbers, "bold"), f": {rules}" if rules else "")

    def next_steps(self, run: Run, written: Mapping[Path, Path], *, needs_runtime: bool, is_patch: bool) -> None:
        """Print what to do with the result.

        Args:
            run: what came of all scripts.
            written: where each file went, if anywhere.
            needs_runtime: whether the runtime must be installed where it trains.
            is_patch: whether what was printed can be applied to files.
        """
        self._asked_torch(run)
        done = {"migrated", "extended"}
        migrated = [report for report in run.reports if done & {report.precision, report.distribution}]
        if run.updates and not written and is_patch:
            self.line(("next: ", "bold"), "read the diff, then write it with -w, or pipe it into `git apply`")
        if not written or not migrated:
            return
        scripts = {report.entry: started(written.get(report.entry, report.entry)) for report in migrated}
        steps = []
        # Where precision stayed as it was, or is half by hand, the script does not read the variable.
        if lowered := [report for report in migrated if report.precision in done and report.reads_level]:
            first = scripts[lowered[0].entry]
            level = "AMP_OPT_LEVEL=O1" if lowered[0].in_full else "AMP_OPT_LEVEL=O0"
            command = f"{level} python {first}"
            if number := lowered[0].launched:
                command = f"{level} torchrun --standalone --nproc-per-node {number} {first}"
            elif lowered[0].entry.suffix == NOTEBOOK:
                command = f"`%env {level}` in a first cell of {first}"
            if lowered[0].level_if:
                command += f", with options that give `{lowered[0].level_if}`"
            elif lowered[0].asks and lowered[0].entry.suffix != NOTEBOOK:
                command += _WITH_ARGUMENTS
            asked = "train in mixed precision, which the script's own level O0 does not"
            steps.append(f"{asked if lowered[0].in_full else 'compare with full precision'}: {command}")
        distributed = [report for report in migrated if report.distribution == "migrated"]
        if distributed and not run.launches.found:
            launch = f"torchrun --standalone --nproc-per-node N {scripts[distributed[0].entry]}"
            launch += _WITH_ARGUMENTS if distributed[0].asks else ""
            steps.insert(0, f"launch N processes: {launch}")
        if needs_runtime and not trains_here():
            from amp_migrate.installation import runtime_line

            steps.append(f"where it trains: {runtime_line()}, or copy the runtime with --vendor")
        if needs_runtime and (unlisted := lacks_runtime(migrated[0].entry)):
            from amp_migrate.installation import runtime_requirement

            # Other files say where a package comes from in words of their own.
            line = runtime_requirement()
            what = line if takes_lines_of_pip(unlisted) else f"amp-runtime, for pip `{line}`"
            if is_list_of_conda(unlisted):
                where = f"the environment of {shown(unlisted)}, which conda reads"
                steps.append(f"add the runtime by pip to {where}: {line}")
            else:
                where = "where torch is"
                if is_environment_of_conda(unlisted):
                    where = "below `- pip:`"
                    where += "" if has_list_for_pip(unlisted) else ", which its dependencies do not have yet"
                steps.append(f"list the runtime in {shown(unlisted)}, {where}: {what}")
        for step in steps:
            self.code(("next: ", "bold"), step)
        if needs_runtime and (other := other_runtime()):
            self.line("note: ", other)

    def _asked_torch(self, run: Run) -> None:
        """Print where the project asks for a torch that the new code is too new for."""
        # What a script's own processes lacked is written in words that an older torch has, too.
        migrated = (report for report in run.reports if "migrated" in (report.precision, report.distribution))
        changed = next((report.entry for report in migrated if report.changes or report.edits), None)
        if changed is not None:
            self._needs_torch(asked_older(changed), "", NEEDED)
            return
        renamed = next((report for report in run.reports if any(edit.code == "AMP411" for edit in report.edits)), None)
        if renamed is None:
            return
        # The runtime is not there, whose own requirement would raise a lower bound.
        needed = needed_by_names(renamed.changes)
        if (asked := asked_older(renamed.entry, needed)) is not None:
            self._needs_torch(asked, "", needed)
        else:
            self._needs_torch(takes_older(renamed.entry, needed), " takes an older one, too", needed)

    def _needs_torch(self, asked: Asked | None, takes: str, needed: tuple[int, int]) -> None:
        if asked is not None:
            version = ".".join(map(str, needed))
            where = f"{place(asked.path, asked.line)}: `{asked.text}`{takes}"
            self.line(("note: ", "bold"), f"{where}, and the new code needs torch {version} or later")

    def launches(self, launches: Launches) -> None:
        """Print the commands that start one process, nearest to their scripts first."""
        self._launches(nearest_first(launches.edited), "edited")
        left = nearest_first(launches.left)
        # Some say how many there are already.
        number = ", with their number for N" if any(_LEFT_OPEN.search(launch.replacement) for launch in left) else ""
        self._launches(left, f"not edited; for several processes use these{number}")
        if launches.incomplete:
            self.line(
                "note: the project is too large or too deep to be searched whole for commands that start its scripts"
            )

    def _launches(self, found: Sequence[Launch], what: str) -> None:
        if found:
            self.line(("launches", "bold"), f", {what}:")
        for launch in found[:_LISTED]:
            self.code(f"  {place(launch.path, launch.line)}: {launch.command}")
            self.code(("      -> ", "green"), launch.replacement)
            for note in launch.notes:
                self.line(f"         {note}")
        if len(found) > _LISTED:
            self.line(f"  and {len(found) - _LISTED} more (--format json lists them all)")

    def _time(self, report: Report) -> None:
        """Print how long each phase took, the longest first; nothing of what an earlier run found."""
        phases = sorted(report.seconds, key=lambda item: -item[1])
        if phases:
            told = ", ".join(f"{name} {seconds:.2f}" for name, seconds in phases)
            self.line(f"  {sum(seconds for _, seconds in phases):.2f} s: {told}")

    def _report(self, report: Report, told: set[Refusal], noted: set[Note], *, alone: bool) -> None:
        if alone:
            done = "its old interfaces are replaced" if report.changes else "it is left unchanged"
            self.line(f"{shown(report.entry)}: no training script imports it; {done}")
        elif report.precision == "absent" and report.distribution in ("absent", "not requested"):
            self.line(f"{shown(report.entry)}: no training step found")
        else:
            self.line(
                f"{shown(report.entry)}: precision ",
                self._outcome(report, report.precision, "precision"),
                ", distribution ",
                self._outcome(report, report.distribution, "distribution"),
                f" ({OWN_LEFT.code} names what was seen and left)"
                if report.distribution == "extended" and _is_left(report)
                else "",
                " (--ddp asks for it)"
                if report.distribution == "not requested" and report.entry.suffix != NOTEBOOK
                else "",
            )
        if (kept := _kept_precision(report)) is not None:
            where = place(kept.path, kept.span.start.line, cell=kept.cell)
            self.line(f"  note: {where}: ", (f"{kept.code} {kept.name}", "cyan"), f": {_WHY_O0}")
        if self.verbose:
            self._time(report)
            for edit in sorted(report.edits, key=lambda edit: (str(edit.path), edit.cell or 0, edit.span)):
                start = edit.span.start
                where = place(edit.path, start.line, start.column, cell=edit.cell)
                self.line(f"  {where}: ", (f"{edit.code} {edit.name}", "cyan"), f": {edit.message}")
        new = [refusal for refusal in report.refusals if refusal not in told]
        told.update(new)
        self._refused(new)
        if report.refusals and not new:
            first = report.refusals[0]
            where = place(first.path, first.span.start.line if first.span else None, cell=first.cell)
            self.line(f"  {where}: ", (f"{first.code} {first.name}", "yellow"), ", as above")
        # What was refused writing has one line, its error; the notes come with the run that writes.
        is_silent = alone or any(change.path.resolve() in self.unwritten for change in report.changes)
        for note in report.notes if not is_silent else ():
            if note not in noted:
                where = place(note.path, note.line, cell=note.cell)
                label = f"{note.code} {note.name}"
                if note.code == NOT_SCALED.code:  # which fails a check
                    self.line(f"  {where}: ", (label, "yellow"), f": {note.text}")
                else:
                    self.line(f"  note: {where}: ", (label, "cyan"), f": {note.text}")
        noted.update(report.notes)

    def _outcome(self, report: Report, outcome: Outcome, unit: Unit) -> tuple[str, str]:
        """The word for what became of a unit, and its style; nothing is migrated that was not written."""
        if outcome == "declined" and is_skipped(report, unit):
            return "skipped", "dim"
        if outcome in _DONE and any(change.path.resolve() in self.unwritten for change in report.changes):
            return "not written", "red"
        return outcome, _STYLES[outcome]

    def _refused(self, refusals: Iterable[Refusal]) -> None:
        """Print the reasons of each unit, as many as can be mended in one go; places of old names are no reasons."""
        count: Counter[Unit] = Counter()
        for refusal in refusals:
            count[refusal.unit] += 1
            if refusal.unit == "modern" or self.verbose or count[refusal.unit] <= _MOST_REASONS:
                self._refusal(refusal)
        for unit, number in count.items():
            more = number - _MOST_REASONS
            if more > 0 and unit != "modern" and not self.verbose:
                self.line(f"  and {more} more {'reason' if more == 1 else 'reasons'} ({unit}; -v shows them)")

    def _refusal(self, refusal: Refusal) -> None:
        start = refusal.span.start if refusal.span else None
        where = place(refusal.path, start.line if start else None, cell=refusal.cell)
        self.line(f"  {where}: ", (f"{refusal.code} {refusal.name}", "yellow"), f": {refusal.message}")
        for line in refusal.recipe.splitlines():
            # What is indented in a recipe is code.
            show = self.code if line.startswith(" ") else self.line
            show(f"      {line}" if line.strip() else "")


def _kept_precision(report: Report) -> Edit | None:
    """The edit that starts the runtime at O0 because the script's own mixed precision stays."""
    if not any('opt_level="O0"' in change.after for change in report.changes):
        return None
    return next((edit for edit in report.edits if edit.message == OWN_PRECISION_STAYS), None)


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _is_left(report: Report) -> bool:
    """Whether notes name what a script's own processes go on without."""
    return any(note.code == OWN_LEFT.code for note in report.notes)


def _word(path: Path) -> str:
    """The path as a shell takes it."""
    return shlex.quote(shown(path))
