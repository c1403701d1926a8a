"""Several scripts that share modules: each is decided on alone, then their changes are joined.

A module that two scripts share is rewritten once and must be right for both. The runtime does nothing before
``amp.init``, so a script that is not migrated runs as before whatever is rewritten in the modules that it shares; and
what stands in functions that a script never runs cannot concern it. Anything else that the one script wants in a
function which both run, and the other does not, is a conflict: then the one that is migrated further is kept, and the
other is left alone with the reason, or decided on again with the shared modules as they will be."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from amp_rules.planning import refusal
from amp_rules.report import Edit, FileChange, Outcome, Position, Refusal, Report, Span

_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$")
_DISTRIBUTION = "AMP2"
# Right in any script, whether its model is prepared or not and however many processes there are.
_HARMLESS = frozenset({"AMP204", "AMP205", "AMP206", "AMP207", "AMP209", "AMP210"})


@dataclass(frozen=True, order=True)
class Hunk:
    """Lines from ``first`` up to ``last``, counted from 0, that become others; nothing is replaced where both equal."""

    first: int
    last: int
    lines: tuple[str, ...]

    def overlaps(self, other: Hunk) -> bool:
        """Whether the two cannot both be made."""
        if self.first == self.last or other.first == other.last:
            return (
                self.first == other.first
                or other.first < self.first < other.last
                or self.first < other.first < self.last
            )
        return self.first < other.last and other.first < self.last

    def only_imports(self) -> bool:
        """Whether nothing is added but imports of the runtime."""
        return self.first == self.last and all(
            not line.strip() or line.startswith("import amp_runtime") for line in self.lines
        )


@dataclass
class Together:
    """The reports of all scripts, in the order given, and the files as they become."""

    reports: list[Report] = field(default_factory=list)
    changes: dict[Path, FileChange] = field(default_factory=dict)


@dataclass
class _Shared:
    """One file that more than one script changes or runs, and what has been decided about it so far."""

    before: str
    hunks: dict[Hunk, list[Report]] = field(default_factory=dict)


def join(reports: Sequence[Report]) -> Together:
    """Join the results for several scripts, each of which was decided on with the same files."""
    shared: dict[Path, _Shared] = {}
    kept: list[Report] = []
    answers: dict[int, Report] = {}
    order = sorted(
        range(len(reports)), key=lambda index: (-_migrated(reports[index]), -len(reports[index].edits), index)
    )
    for index in order:
        report = reports[index]
        mine = {change.path: hunks(change.before, change.after) for change in report.changes}
        conflict = _conflict(report, mine, shared, kept)
        if conflict is not None:
            answers[index] = _left_alone(report, conflict)
            continue
        answers[index] = report
        kept.append(report)
        for change in report.changes:
            file = shared.setdefault(change.path, _Shared(change.before))
            for hunk in mine[change.path]:
                file.hunks.setdefault(hunk, []).append(report)
    found = Together([answers[index] for index in range(len(reports))])
    for path in sorted(shared):
        file = shared[path]
        after = applied(file.before, file.hunks)
        if after != file.before:
            found.changes[path] = FileChange(path, file.before, after)
    return found


def hunks(before: str, after: str) -> list[Hunk]:
    """What differs between two texts, as few lines as possible."""
    old, new = _LINES.findall(before), _LINES.findall(after)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [
        Hunk(first, last, tuple(new[start:end]))
        for tag, first, last, start, end in matcher.get_opcodes()
        if tag != "equal"
    ]


def applied(before: str, changes: Iterable[Hunk]) -> str:
    """The text with hunks that do not overlap."""
    lines: list[str] = _LINES.findall(before)
    for hunk in sorted(changes, reverse=True):
        lines[hunk.first : hunk.last] = hunk.lines
    return "".join(lines)


def _migrated(report: Report) -> int:
    return [report.precision, report.distribution].count("migrated")


@dataclass(frozen=True)
class _Conflict:
    path: Path
    hunk: Hunk
    other: Report


def _conflict(
    report: Report, mine: dict[Path, list[Hunk]], shared: dict[Path, _Shared], kept: Sequence[Report]
) -> _Conflict | None:
    for path, wanted in mine.items():
        taken = shared[path].hunks if path in shared else {}
        for hunk in wanted:
            if hunk in taken:
                continue
            for other, owners in taken.items():
                if hunk.overlaps(other):
                    return _Conflict(path, hunk, owners[0])
            for other_report in kept:
                if _concerns(path, hunk, report, other_report):
                    return _Conflict(path, hunk, other_report)
    for path, file in shared.items():
        own = mine.get(path, ())
        for hunk, owners in file.hunks.items():
            if hunk not in own and all(_concerns(path, hunk, owner, report) for owner in owners):
                return _Conflict(path, hunk, owners[0])
    return None


def _concerns(path: Path, hunk: Hunk, owner: Report, other: Report) -> bool:
    """Whether a change that ``owner`` wants, and ``other`` does not, is one that ``other`` would run and feel."""
    if other.precision != "migrated" and other.distribution != "migrated":
        return False
    if hunk.only_imports() or other.reach is None or path not in other.reach.files:
        return False
    codes = {edit.code for edit in _edits(path, hunk, owner)}
    if codes and codes <= _HARMLESS:
        return False
    if other.distribution != "migrated" and all(code.startswith(_DISTRIBUTION) for code in codes):
        # Without processes of its own, what shares out the data or writes once does nothing.
        return False
    return _runs(path, hunk, owner, other)


def _runs(path: Path, hunk: Hunk, owner: Report, other: Report) -> bool:
    """Whether ``other`` runs the innermost function around the hunk that any of the two knows."""
    assert other.reach is not None
    lines = range(hunk.first + 1, max(hunk.last, hunk.first + 1) + 1)
    own = owner.reach.functions.get(path, ()) if owner.reach is not None else ()
    its = other.reach.functions.get(path, ())
    around = [item for item in {*own, *its} if item[0] <= lines[0] and lines[-1] <= item[1]]
    if not around:
        # On the file's own level, which runs when it is imported, except for what is under a main guard.
        return not _is_guarded(path, owner)
    return max(around) in its


def _is_guarded(path: Path, owner: Report) -> bool:
    """Whether the change stands in the script that ``owner`` is about, so that no other script runs it."""
    return path == owner.entry


def _edits(path: Path, hunk: Hunk, report: Report) -> list[Edit]:
    first, last = hunk.first + 1, max(hunk.last, hunk.first + 1)
    return [
        edit
        for edit in report.edits
        if edit.path == path and edit.span.start.line <= last + 1 and first - 1 <= edit.span.end.line
    ]


def _left_alone(report: Report, conflict: _Conflict) -> Report:
    rule = refusal.SHARED_MODULE
    line = Position(conflict.hunk.first + 1, 1)
    message = (
        f"{conflict.path.name} is shared with {conflict.other.entry.name}, which needs it rewritten in another way here"
    )
    recipe = (
        f"migrate this script by itself with --entry {report.entry.name} to see what it would need, and give the two "
        "scripts functions of their own for it"
    )
    found = Refusal(conflict.path, Span(line, line), rule.code, rule.name, "precision", message, recipe)

    def outcome(before: Outcome) -> Outcome:
        return "declined" if before == "migrated" else before

    return replace(
        report,
        precision=outcome(report.precision),
        distribution=outcome(report.distribution),
        changes=(),
        edits=(),
        refusals=(found, *report.refusals),
    )
