"""What people read: the summary on standard error, and the diff on a terminal."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from amp_rules.report import Outcome, Refusal, Report

from amp_migrate.problems import Problem, place, shown
from amp_migrate.runner import Run

if TYPE_CHECKING:
    from rich.console import Console

_STYLES: dict[Outcome, str] = {
    "migrated": "green",
    "declined": "yellow",
    "already": "cyan",
    "absent": "dim",
    "not requested": "dim",
}
# Fewer files are done before anybody could read a bar.
_BAR_FROM = 8


def wants_colour(choice: str, stream: TextIO) -> bool:
    """Decide on colour: ``--color`` first, then NO_COLOR and TERM, then whether anybody is watching."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


@dataclass
class Summary:
    """Prints to standard error what was done, what was left alone and why, and what to do next.

    Attributes:
        colour: ``--color``.
        quiet: say nothing but errors.
        verbose: also list every edit, and the traceback of an internal error.
    """

    colour: str = "auto"
    quiet: bool = False
    verbose: bool = False
    _console: Console | None = field(default=None, init=False)

    @property
    def console(self) -> Console:
        """The console, made when first needed: importing rich takes longer than ``--help`` should."""
        if self._console is None:
            from rich.console import Console

            colour = wants_colour(self.colour, sys.stderr)
            self._console = Console(
                file=sys.stderr,
                force_terminal=colour,
                color_system="standard" if colour else None,
                soft_wrap=True,
                highlight=False,
                markup=False,
                emoji=False,
            )
        return self._console

    @contextmanager
    def progress(self, total: int) -> Iterator[Callable[[Path], None]]:
        """Yield the function to call before each file; it draws a bar where somebody watches."""
        if self.quiet or total < _BAR_FROM or not sys.stderr.isatty():
            yield lambda path: None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task("", total=total, completed=-1)

            def advance(path: Path) -> None:
                bar.update(task, advance=1, description=shown(path))

            yield advance

    def line(self, *parts: str | tuple[str, str]) -> None:
        """Print one line of plain or (text, style) parts, unless quiet."""
        if not self.quiet:
            self._print(*parts)

    def problem(self, problem: Problem) -> None:
        """Print why a file was left as it was."""
        self._print(("error: ", "bold red"), str(problem))
        if self.verbose and problem.detail:
            for line in problem.detail.rstrip().splitlines():
                self._print(f"    {line}")

    def reports(self, reports: Sequence[Report], named: set[Path]) -> None:
        """Print one paragraph for each entry script; of walked files only those that train."""
        told: set[Refusal] = set()
        for report in reports:
            untouched = {report.precision, report.distribution} <= {"absent", "already", "not requested"}
            if untouched and not report.changes and not self.verbose and report.entry not in named:
                continue
            self._report(report, told)

    def counts(self, run: Run) -> None:
        """Print the number of edits, by rule."""
        edits = {edit for report in run.reports for edit in report.edits}
        if not run.updates:
            self.line("nothing to change")
            return
        by_rule = Counter((edit.code, edit.name) for edit in edits)
        rules = ", ".join(f"{code} {name} {count}" for (code, name), count in sorted(by_rule.items()))
        numbers = f"{_plural(len(edits), 'edit')} in {_plural(len(run.updates), 'file')}"
        self.line((numbers, "bold"), f": {rules}" if rules else "")

    def next_steps(self, run: Run, written: Mapping[Path, Path], vendored: bool) -> None:
        """Print what to do with the result; ``written`` says where each file went, if anywhere."""
        migrated = [report for report in run.reports if "migrated" in (report.precision, report.distribution)]
        if run.updates and not written:
            self.line(("next: ", "bold"), "read the diff, then write it with -w, or pipe it into `git apply`")
        if not written or not migrated:
            return
        scripts = {report.entry: shown(written.get(report.entry, report.entry)) for report in migrated}
        steps = [f"compare with full precision: AMP_OPT_LEVEL=O0 python {scripts[migrated[0].entry]}"]
        distributed = [report for report in migrated if report.distribution == "migrated"]
        if distributed:
            launch = f"torchrun --nproc-per-node N {scripts[distributed[0].entry]}"
            steps.insert(0, f"launch N processes: {launch}")
        if not vendored:
            steps.append("where it trains: pip install 'amp-migrate[runtime]', or copy the runtime with --vendor")
        for step in steps:
            self.line(("next: ", "bold"), step)

    def _report(self, report: Report, told: set[Refusal]) -> None:
        if report.precision == "absent" and report.distribution in ("absent", "not requested"):
            self.line(f"{shown(report.entry)}: no training step found")
        else:
            self.line(
                f"{shown(report.entry)}: precision ",
                (report.precision, _STYLES[report.precision]),
                ", distribution ",
                (report.distribution, _STYLES[report.distribution]),
                " (--ddp asks for it)" if report.distribution == "not requested" else "",
            )
        if self.verbose:
            for edit in sorted(report.edits, key=lambda edit: (str(edit.path), edit.span)):
                start = edit.span.start
                where = place(edit.path, start.line, start.column)
                self.line(f"  {where}: ", (f"{edit.code} {edit.name}", "cyan"), f": {edit.message}")
        for refusal in report.refusals:
            if refusal not in told:
                told.add(refusal)
                self._refusal(refusal)
        for note in report.notes:
            self.line(f"  note: {note}")

    def _refusal(self, refusal: Refusal) -> None:
        start = refusal.span.start if refusal.span else None
        where = place(refusal.path, start.line if start else None)
        self.line(f"  {where}: ", (f"{refusal.code} {refusal.name}", "yellow"), f": {refusal.message}")
        for line in refusal.recipe.splitlines():
            self.line(f"      {line}" if line.strip() else "")

    def _print(self, *parts: str | tuple[str, str]) -> None:
        from rich.text import Text

        # Control characters in a file's name or text are shown, lest they steer the terminal.
        self.console.print(Text.assemble(*(_visible(part) for part in parts)), soft_wrap=True)


def _visible(part: str | tuple[str, str]) -> str | tuple[str, str]:
    text, style = part if isinstance(part, tuple) else (part, "")
    safe = "".join(char if char.isprintable() or char in " \t" else ascii(char)[1:-1] for char in text)
    return (safe, style)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
