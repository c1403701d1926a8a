"""Scripts in plain torch that share modules with others: nothing in these modules waits for a start.

The runtime does nothing before ``amp.init``, so a module in its words serves scripts that are not migrated as before.
A region of ``torch.autocast`` is one for every script that runs it, and a function that is given the scaler must be
given it by all who call it. So a script is left alone if another one, which is not migrated, runs what it would change.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from amp_rules.folder.shared_modules import Hunk, Together, felt_by, hunks, is_migrated, join, left_alone, runs
from amp_rules.plan import notes
from amp_rules.plan.report import FileChange, Note, Report
from amp_rules.source.mentions import Mentions

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_WITHOUT_START = "and is not migrated: plain torch does not wait for a start, as the runtime does"
_RECIPE = (
    "name all scripts that share it in one run, give this one functions of its own, or take --target runtime, which "
    "changes nothing in scripts that are not migrated"
)


def join_in_torch(reports: Sequence[Report], others: Sequence[Report] = ()) -> Together:
    """Join the results for several scripts, without those that would change what another one runs unmigrated.

    Args:
        reports: the results.
        others: those of scripts that were joined before.
    """
    current = list(reports)
    searched: dict[Path, Mentions] = {}
    while True:
        together = join(current)
        everyone = [*together.reports, *others]
        current = [_settled(report, everyone, searched) for report in together.reports]
        if current == together.reports:
            noted = [_noted(report, everyone, searched) for report in current]
            return Together(noted, together.changes)


def _settled(report: Report, reports: Sequence[Report], searched: dict[Path, Mentions]) -> Report:
    """The report, or one that leaves the script alone."""
    if not is_migrated(report):
        return report
    for other in reports:
        if is_migrated(other) or other.reach is None or other.entry == report.entry:
            continue
        for change in report.changes:
            for hunk in hunks(change.before, change.after) if change.path in other.reach.files else ():
                if _feels(change.path, hunk, report, other):
                    message = f"{change.path.name} is run by {other.entry.name} too, {_WITHOUT_START}"
                    return left_alone(report, change.path, hunk.first + 1, message, _RECIPE)
    for change in report.changes:
        for names, line in _new_parameters(change):
            for file in _elsewhere(change.path, names, reports, searched):
                message = f"`{'.'.join(names)}` is given the scaler now; {file.name} calls it too, {_WITHOUT_START}"
                return left_alone(report, change.path, line, message, _RECIPE)
    return report


def _feels(path: Path, hunk: Hunk, owner: Report, other: Report) -> bool:
    """Whether a script that is not migrated runs what ``owner`` changes; what is for several processes matters to it
    where it has processes of its own."""
    if other.distribution in ("already", "extended"):
        return not hunk.only_head() and runs(path, hunk, owner, other)
    return felt_by(path, hunk, owner, other)


def _noted(report: Report, reports: Sequence[Report], searched: dict[Path, Mentions]) -> Report:
    """The report with a note on what files that are not migrated now run under autocast."""
    if not is_migrated(report):
        return report
    rule = notes.OTHERS
    found = []
    for change in report.changes:
        told: dict[Path, list[str]] = {}
        for names in _new_regions(change):
            for file in _elsewhere(change.path, names, reports, searched):
                told.setdefault(file, []).append(f"`{'.'.join(names)}`")
        for file, own in told.items():
            functions = " and ".join(own)
            text = f"{file.name} is not migrated, and runs {functions} under autocast, too, if it calls it"
            found.append(Note(change.path, None, rule.code, rule.name, text))
    return replace(report, notes=notes.in_order([*report.notes, *found])) if found else report


def _elsewhere(
    module: Path, names: Sequence[str], reports: Sequence[Report], searched: dict[Path, Mentions]
) -> Iterator[Path]:
    """The files that import a module and mention some names, and that no migrated script leads to."""
    reached = {file for report in reports if is_migrated(report) and report.reach for file in report.reach.files}
    stem = module.parent.name if module.stem == "__init__" else module.stem
    if module.parent not in searched:
        searched[module.parent] = Mentions(module)
    imports = re.compile(rf"^[ \t]*(?:from|import)\b[^\n]*\b{re.escape(stem)}\b".encode(), re.MULTILINE)
    for file in searched[module.parent].of(*names, stem):
        if file not in reached and file != module:
            try:
                text = file.read_bytes()
            except OSError:
                continue
            if imports.search(text) and all(re.search(rf"\b{re.escape(name)}\b".encode(), text) for name in names):
                yield file


# ---- what changes of functions -----------------------------------------------------------------------------------


def _new_parameters(change: FileChange) -> Iterator[tuple[tuple[str, ...], int]]:
    """The functions that take more than before, by the names that who calls them mentions, each with its line."""
    before, after = _functions(change.before), _functions(change.after)
    for names, function in before.items():
        if names in after and ast.dump(function.args) != ast.dump(after[names].args):
            yield names, function.lineno


def _new_regions(change: FileChange) -> Iterator[tuple[str, ...]]:
    """The functions with more regions of autocast than before."""
    before, after = _functions(change.before), _functions(change.after)
    for names, function in before.items():
        if names in after and _regions(after[names]) > _regions(function):
            yield names


def _regions(function: _Function) -> int:
    return sum(
        isinstance(node, ast.With) and any("autocast(" in ast.unparse(item.context_expr) for item in node.items)
        for node in ast.walk(function)
    )


def _functions(text: str) -> dict[tuple[str, ...], _Function]:
    """The functions and methods of a text, by the names that who calls them mentions."""
    found: dict[tuple[str, ...], _Function] = {}
    for node in ast.parse(text).body:
        if isinstance(node, _Function):
            found[(node.name,)] = node
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, _Function):
                    found[(node.name,) if item.name == "__init__" else (node.name, item.name)] = item
    return found
