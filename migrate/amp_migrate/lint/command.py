"""What the command does with its options, one step after the other."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from amp_migrate.exit_codes import ExitCode
from amp_migrate.lint.lint_run import LintRun
from amp_migrate.out.lint import RenderOptions, load_format
from amp_migrate.out.terminal import Messages, plural, print_bytes, print_diff, wants_colour
from amp_migrate.problems import Problem, UserError, shown
from amp_migrate.run.linting import Linting
from amp_migrate.settings.linting import LintSettings

if TYPE_CHECKING:
    from amp_migrate.lint.fixing import MendedFile

_FOR_PEOPLE = ("full", "concise")


@dataclass(frozen=True)
class Request:
    """What is asked for on the command line only; :class:`LintSettings` holds what a file may say too."""

    paths: tuple[Path, ...]
    stdin_filename: Path | None
    fix: bool
    diff: bool
    write_baseline: Path | None
    output_file: Path | None
    statistics: bool
    exit_zero: bool
    exit_non_zero_on_fix: bool
    explain: tuple[str, ...] | None
    list_rules: bool
    color: str

    @property
    def from_stdin(self) -> bool:
        """Whether standard input is what is judged."""
        return self.paths == (Path("-"),)


def run(request: Request, settings: LintSettings, messages: Messages) -> int:
    """Do what is asked and return the exit status.

    Raises:
        UserError: an option or a file of settings is wrong.
    """
    if request.explain is not None or request.list_rules:
        return _tell(request, settings)
    linting = Linting(settings, cached=not request.from_stdin, known=request.write_baseline is None)
    if request.from_stdin:
        return _stdin(request, linting, messages)
    paths, problems = _discover(request, settings, messages)
    with messages.progress(len(paths)) as advance:
        found = linting.run(paths, advance)
    found.problems[:0] = problems
    found.unjudged |= {problem.path for problem in problems}
    if messages.verbose:
        counts = f"{plural(found.files, 'file')}, {found.cached} from the cache"
        messages.line(f"mode {found.mode}; {plural(len(linting.codes), 'rule')}; {counts}")
    if request.write_baseline is not None:
        return _write_baseline(request.write_baseline, found, messages)
    if request.diff:
        return _diff(request, linting, found, messages)
    if request.fix:
        _fix(linting, found, messages)
    return _report(request, settings, found, messages)


def _discover(request: Request, settings: LintSettings, messages: Messages) -> tuple[list[Path], list[Problem]]:
    from amp_migrate.run.discovery import discover

    found = discover(request.paths, settings.exclude, settings.root)
    for folder in found.barren:
        messages.line(("warning: ", "yellow"), f"no Python files below {shown(folder)}")
    return [target.path for target in found.targets], found.problems


# ---- findings ------------------------------------------------------------------------------------------------


def _report(request: Request, settings: LintSettings, found: LintRun, messages: Messages) -> int:
    """Print the findings and return the exit status."""
    _deliver(request, _rendered(request, settings, found, to_file=request.output_file is not None))
    return _close(request, settings, found, messages)


def _close(request: Request, settings: LintSettings, found: LintRun, messages: Messages) -> int:
    """Say on standard error what people want to know besides, and return the exit status."""
    for problem in found.problems:
        messages.problem(problem)
    if found.stale and settings.baseline:
        entries = "entry" if found.stale == 1 else "entries"
        messages.line(f"note: {shown(settings.baseline)}: {found.stale} stale {entries}; --write-baseline renews it")
    if settings.output_format in _FOR_PEOPLE:
        messages.line(*_summary(settings, found))
    if found.problems:
        return ExitCode.ERROR
    wanted = (found.diagnostics and not request.exit_zero) or (found.mended and request.exit_non_zero_on_fix)
    return ExitCode.FOUND if wanted else ExitCode.FINE


def _summary(settings: LintSettings, found: LintRun) -> Sequence[str | tuple[str, str]]:
    known = f" ({found.known} in the baseline)" if found.known else ""
    unjudged = f"; {plural(len(found.unjudged), 'file')} could not be judged" if found.unjudged else ""
    if not found.diagnostics and found.unjudged and not found.judged:
        return (f"nothing judged{unjudged}",)
    if not found.diagnostics:
        return (("nothing found", "green"), f" in {plural(found.judged, 'file')}{known}{unjudged}")
    fixes = [item.finding.fix for item in found.diagnostics if item.finding.fix]
    safe = sum(fix.safety == "safe" or settings.unsafe_fixes for fix in fixes)
    parts = []
    if safe:
        parts.append(f"{safe} fixable with --fix")
    if safe < len(fixes):
        parts.append(f"{len(fixes) - safe} more with --unsafe-fixes")
    files = len({item.finding.path for item in found.diagnostics})
    numbers = f"{plural(len(found.diagnostics), 'finding')} in {plural(files, 'file')}"
    return ((numbers, "bold"), f"{known}; {', '.join(parts)}{unjudged}" if parts else f"{known}{unjudged}")


def _rendered(request: Request, settings: LintSettings, found: LintRun, *, to_file: bool = False) -> str:
    if request.statistics:
        return _statistics(found)
    colour = not to_file and wants_colour(request.color, sys.stdout)
    options = RenderOptions(colour, settings.unsafe_fixes)
    return "".join(load_format(settings.output_format).render(found, options))


def _statistics(found: LintRun) -> str:
    counts = Counter((item.finding.code, item.finding.name) for item in found.diagnostics)
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    width = len(str(rows[0][1])) if rows else 0
    return "".join(f"{count:{width}}  {code}  {name}\n" for (code, name), count in rows)


def _deliver(request: Request, text: str) -> None:
    """Bring a text to standard output, or to the file that was named instead."""
    if request.output_file is None:
        encoding = (sys.stdout.encoding or "utf-8") if sys.stdout.isatty() else "utf-8"
        print_bytes(text.encode(encoding, "backslashreplace"))
    else:
        _write(request.output_file, text)


def _write(path: Path, text: str) -> None:
    from amp_migrate.write.replacing import Replacement, replace_all

    path = path.absolute()
    if problem := replace_all([Replacement(path, text.encode("utf-8", "backslashreplace"), None, path)]):
        raise UserError(str(problem))


def _write_baseline(path: Path, found: LintRun, messages: Messages) -> int:
    from amp_migrate.lint.baseline import render_baseline

    _write(path, render_baseline(path, str(found.mode), found.diagnostics))
    for problem in found.problems:
        messages.problem(problem)
    messages.line(f"wrote {plural(len(found.diagnostics), 'finding')} to {shown(path.absolute())}")
    return ExitCode.ERROR if found.problems else ExitCode.FINE


# ---- standard input ------------------------------------------------------------------------------------------


def _stdin(request: Request, linting: Linting, messages: Messages) -> int:
    """Judge or mend standard input; a mended text goes to standard output, and the findings to standard error."""
    if request.write_baseline is not None:
        raise UserError("standard input has no place that a baseline could name")
    path = request.stdin_filename.resolve() if request.stdin_filename else Path.cwd() / "<stdin>"
    data = sys.stdin.buffer.read()
    found = linting.run_text(path, data)
    if not (request.fix or request.diff):
        return _report(request, linting.settings, found, messages)
    mended = _mended(linting, found, path, data)
    if request.diff:
        return _print_diffs(request, [mended], found, messages)
    if mended.left:
        found = mended.left
        found.mended = 1
    print_bytes(mended.after)
    sys.stderr.write(_rendered(request, linting.settings, found, to_file=True))
    return _close(request, linting.settings, found, messages)


# ---- fixes ---------------------------------------------------------------------------------------------------


def _mended(linting: Linting, found: LintRun, path: Path, data: bytes) -> MendedFile:
    from amp_migrate.lint.fixing import mend

    diagnostics = [item for item in found.diagnostics if item.finding.path == path]
    mended = mend(path, data, diagnostics, linting.settings.unsafe_fixes, linting.run_text)
    if mended.problem:
        found.problems.append(mended.problem)
    return mended


def _mended_files(linting: Linting, found: LintRun) -> list[MendedFile]:
    """Mend, in memory, every file that has something to mend."""
    mended = []
    for path, group in groupby(list(found.diagnostics), key=lambda item: item.finding.path):
        fixes = [item.finding.fix for item in group if item.finding.fix]
        if any(fix.safety == "safe" or linting.settings.unsafe_fixes for fix in fixes):
            try:
                data = path.read_bytes()
            except OSError as error:
                found.problems.append(Problem(path, f"cannot be read: {error.strerror or error}"))
                continue
            mended.append(_mended(linting, found, path, data))
    return mended


def _fix(linting: Linting, found: LintRun, messages: Messages) -> None:
    """Mend the files, and leave in ``found`` what could not be mended."""
    from amp_migrate.write.replacing import Replacement, replace_all

    applied: Counter[str] = Counter()
    written = 0
    for mended in _mended_files(linting, found):
        if mended.left is None:
            continue
        problem = replace_all([Replacement(mended.path, mended.after, mended.before, mended.path)])
        if problem:
            found.problems.append(problem)
            continue
        written += 1
        applied += mended.applied
        found.replace(mended.path, mended.left)
    found.mended = written
    if written:
        rules = ", ".join(f"{code} {count}" for code, count in sorted(applied.items()))
        messages.line((f"fixed {plural(written, 'file')}", "green"), f": {rules}")


def _diff(request: Request, linting: Linting, found: LintRun, messages: Messages) -> int:
    return _print_diffs(request, _mended_files(linting, found), found, messages)


def _print_diffs(request: Request, files: Sequence[MendedFile], found: LintRun, messages: Messages) -> int:
    """Print what mending would change."""
    from amp_migrate.out.diff import names, unified_diff

    changed = [mended for mended in files if mended.after != mended.before]
    labels = names([mended.path for mended in changed])
    lines = [unified_diff(labels[mended.path], mended.before, mended.after) for mended in changed]
    if request.output_file is not None:
        _write(request.output_file, b"".join(lines).decode("utf-8", "backslashreplace"))
    else:
        for part in lines:
            print_diff(part, "utf-8", request.color)
    for problem in found.problems:
        messages.problem(problem)
    messages.line(f"would fix {plural(len(changed), 'file')}" if changed else "nothing to fix")
    if found.problems:
        return ExitCode.ERROR
    return ExitCode.FOUND if changed and not request.exit_zero else ExitCode.FINE


# ---- rules ---------------------------------------------------------------------------------------------------


def _tell(request: Request, settings: LintSettings) -> int:
    """Answer ``--explain`` and ``--list-rules``."""
    from amp_migrate.lint import pages
    from amp_migrate.lint.catalogue import load_rules
    from amp_migrate.run.finding_cache import FindingCache

    rules = FindingCache(settings.cache_folder).rules(load_rules)
    if request.list_rules:
        as_json = settings.output_format == "json"
        _deliver(request, pages.rules_json(rules) if as_json else pages.rules_table(rules))
        return ExitCode.FINE
    text = pages.explain(request.explain or (), rules)
    if request.output_file is None and wants_colour(request.color, sys.stdout):
        from rich.console import Console
        from rich.markdown import Markdown

        Console(force_terminal=True).print(Markdown(text))
    else:
        _deliver(request, text)
    return ExitCode.FINE
