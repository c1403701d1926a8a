"""Several scripts that share modules: each is decided on alone, then their changes are joined.

A module that two scripts share is rewritten once and must be right for both. The runtime does nothing before
``amp.init``, so a script that is not migrated runs as before whatever is rewritten in the modules that it shares (in
plain torch it does not: see :mod:`amp_rules.folder.torch_users`); and what stands in functions that a script never runs
cannot concern it. Anything else that the one script wants in a function which both run, and the other does not, is a
conflict: then the one that is migrated further is kept, and the other is left alone with the reason, or decided on
again with the shared modules as they will be."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from amp_rules.plan import declining
from amp_rules.plan.report import Edit, FileChange, Outcome, Refusal, Report
from amp_rules.source.spans import Position, Span

_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$")
_OF_HEAD = re.compile(r"(?:import|from)\s|[A-Z][A-Z_]+ = ")
_GUARD = re.compile(r"^if\s+__name__\s*==", re.MULTILINE)
_DISTRIBUTION = "AMP2"
# Right in any script, whether its model is prepared or not and however many processes there are.
_HARMLESS = frozenset(
    {"AMP111", "AMP112", "AMP113", "AMP114", "AMP115", "AMP116", "AMP117", "AMP118"}
    | {"AMP204", "AMP205", "AMP206", "AMP207", "AMP209", "AMP210", "AMP215", "AMP216", "AMP218"}
    | {"AMP231", "AMP234", "AMP236", "AMP237", "AMP238", "AMP239"}
)


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

    def only_head(self) -> bool:
        """Whether nothing is added but what a file has at its head for the new code: imports, and constants."""
        return self.first == self.last and all(not line.strip() or _OF_HEAD.match(line) for line in self.lines)

    def with_head(self, other: Hunk) -> Hunk:
        """Two of them at one place as one, with each line once."""
        return Hunk(self.first, self.last, (*self.lines, *(line for line in other.lines if line not in self.lines)))


@dataclass
class Together:
    """The reports of all scripts, in the order given, and the files as they become."""

    reports: list[Report] = field(default_factory=list)
    changes: dict[Path, FileChange] = field(default_factory=dict)


Wanted = Mapping[Path, Sequence[Hunk]]


@dataclass
class _Shared:
    """One file that more than one script changes or runs, and what has been decided about it so far."""

    before: str
    hunks: dict[Hunk, list[Report]] = field(default_factory=dict)


class _Joining:
    """The scripts taken so far, and what they want of each file."""

    def __init__(self) -> None:
        self.kept: list[Report] = []
        self.shared: dict[Path, _Shared] = {}

    def take(self, report: Report, mine: Wanted) -> _Conflict | None:
        """Take a script, unless it is in conflict with those taken."""
        conflict = _conflict(report, mine, self.shared, self.kept)
        if conflict is None:
            self.kept.append(report)
            for change in report.changes:
                file = self.shared.setdefault(change.path, _Shared(change.before))
                for hunk in mine[change.path]:
                    file.hunks.setdefault(hunk, []).append(report)
        return conflict


def join(reports: Sequence[Report]) -> Together:
    """Join the results for several scripts, each of which was decided on with the same files."""
    wanted: list[Wanted] = [
        {change.path: hunks(change.before, change.after) for change in report.changes} for report in reports
    ]
    clashes = _clashes(reports, wanted)

    def weight(index: int) -> tuple[int, bool, int, int, int]:
        report = reports[index]
        only_names = not any(edit.code.startswith(("AMP1", "AMP2")) for edit in report.edits)
        return -_migrated(report), only_names, clashes[index], -len(report.edits), index

    joining = _Joining()
    answers: dict[int, Report] = {}
    for index in sorted(range(len(reports)), key=weight):
        conflict = joining.take(reports[index], wanted[index])
        answers[index] = reports[index] if conflict is None else _left_alone(reports[index], conflict)
    found = Together([answers[index] for index in range(len(reports))])
    for path, file in sorted(joining.shared.items()):
        after = applied(file.before, file.hunks)
        if after != file.before:
            found.changes[path] = FileChange(path, file.before, after)
    return found


def _clashes(reports: Sequence[Report], wanted: Sequence[Wanted]) -> list[int]:
    """With how many others each script is in conflict."""
    found = [0] * len(reports)
    for one, two in itertools.combinations(range(len(reports)), 2):
        # Scripts that change no file which the other runs have nothing to settle.
        if any(_touches(reports[a], wanted[b]) for a, b in ((one, two), (two, one))):
            pair = _Joining()
            pair.take(reports[one], wanted[one])
            if pair.take(reports[two], wanted[two]) is not None:
                found[one] += 1
                found[two] += 1
    return found


def _touches(report: Report, wanted: Wanted) -> bool:
    files = {change.path for change in report.changes}
    return bool(wanted.keys() & files) or (report.reach is not None and bool(wanted.keys() & set(report.reach.files)))


def disturbs(report: Report, others: Sequence[Report]) -> bool:
    """Whether a script decided on later changes what one of the others, which are migrated, runs too.

    What stands under the main guard of the script's own file is nobody else's.
    """
    for change in report.changes:
        if not any(is_migrated(other) and other.reach and change.path in other.reach.files for other in others):
            continue
        guard = _GUARD.search(change.before)
        own = change.before.count("\n", 0, guard.start()) if guard and change.path == report.entry else None
        for hunk in hunks(change.before, change.after):
            if not hunk.only_head() and (own is None or hunk.first <= own):
                return True
    return False


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
    for hunk in sorted(_with_one_head(changes), reverse=True):
        lines[hunk.first : hunk.last] = hunk.lines
    return "".join(lines)


def _with_one_head(changes: Iterable[Hunk]) -> Iterator[Hunk]:
    """The hunks, of which those for the head that are at one place are joined."""
    heads: dict[int, Hunk] = {}
    for hunk in sorted(changes, key=lambda hunk: (hunk.first, -len(hunk.lines))):
        if hunk.only_head():
            heads[hunk.first] = heads[hunk.first].with_head(hunk) if hunk.first in heads else hunk
        else:
            yield hunk
    yield from heads.values()


def is_migrated(report: Report) -> bool:
    """Whether a script is migrated in any way."""
    return "migrated" in (report.precision, report.distribution) or report.distribution == "extended"


def _migrated(report: Report) -> int:
    return [report.precision, report.distribution].count("migrated") + (report.distribution == "extended")


@dataclass(frozen=True)
class _Conflict:
    path: Path
    hunk: Hunk
    other: Report


def _conflict(report: Report, mine: Wanted, shared: dict[Path, _Shared], kept: Sequence[Report]) -> _Conflict | None:
    for path, wanted in mine.items():
        taken = shared[path].hunks if path in shared else {}
        for hunk in wanted:
            if hunk in taken:
                continue
            for other, owners in taken.items():
                if hunk.overlaps(other) and not (hunk.only_head() and other.only_head()):
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
    return is_migrated(other) and felt_by(path, hunk, owner, other)


def felt_by(path: Path, hunk: Hunk, owner: Report, other: Report) -> bool:
    """Whether ``other`` runs what ``owner`` changes, and not as it did."""
    if hunk.only_head() or other.reach is None or path not in other.reach.files:
        return False
    codes = {edit.code for edit in _edits(path, hunk, owner)}
    if codes and codes <= _HARMLESS:
        return False
    if (
        other.distribution not in ("migrated", "extended")
        and codes
        and all(code.startswith(_DISTRIBUTION) for code in codes)
    ):
        # Without processes of its own, what shares out the data or writes once does nothing.
        return False
    return runs(path, hunk, owner, other)


def runs(path: Path, hunk: Hunk, owner: Report, other: Report) -> bool:
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
    other = conflict.other.entry
    sharing = "is a script of its own" if conflict.path == other else f"is shared with {other.name}"
    message = f"{conflict.path.name} {sharing}, which needs it rewritten in another way here"
    recipe = (
        f"migrate this script by itself with --entry {report.entry.name} to see what it would need, and give the two "
        "scripts functions of their own for it"
    )
    return left_alone(report, conflict.path, conflict.hunk.first + 1, message, recipe)


def left_alone(report: Report, path: Path, line: int, message: str, recipe: str) -> Report:
    """The report of a script that stays as it is for the sake of another, with the reason and its place."""
    rule = declining.SHARED_MODULE
    place = Position(line, 1)
    found = Refusal(path, Span(place, place), rule.code, rule.name, "precision", message, recipe)

    def outcome(before: Outcome) -> Outcome:
        return "declined" if before == "migrated" else "already" if before == "extended" else before

    return replace(
        report,
        precision=outcome(report.precision),
        distribution=outcome(report.distribution),
        changes=(),
        edits=(),
        refusals=(found, *report.refusals),
        notes=(),
    )
