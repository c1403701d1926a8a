"""Bringing a program's files up to a current PyTorch, before anything else is decided about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from amp_rules import codemods
from amp_rules.context import Change
from amp_rules.drafts import Draft, apart, drafted, joined
from amp_rules.legacy.stages import is_part_of_apex
from amp_rules.modern import gone
from amp_rules.modern.old import Old
from amp_rules.modern.old_syntax import repaired, unparsed
from amp_rules.planning import refusal
from amp_rules.planning.asked import Asked
from amp_rules.program.files import Files
from amp_rules.program.modules import Module, parse
from amp_rules.program.project import Project
from amp_rules.program.source import SourceError, SourceFile
from amp_rules.program.steps import Program
from amp_rules.report import Edit, Position, Refusal, Report, Span
from amp_rules.tables import old_torch as old

_MAX_ROUNDS = 12


@dataclass
class Modernized:
    """A program by the names of a current PyTorch.

    Attributes:
        program: the program, changed.
        drafts: the files that were changed.
        left: what was left as it is, at its places in the changed files.
    """

    program: Program
    drafts: dict[Path, Draft] = field(default_factory=dict)
    left: list[Refusal] = field(default_factory=list)

    def joined(self, report: Report) -> Report:
        """The report of the changed program as one of the program on disk."""
        kept = sorted(self.left, key=lambda item: (str(item.path), item.span or _NOWHERE, item.message))
        return joined(self.drafts, replace(report, refusals=(*report.refusals, *kept)))


_NOWHERE = Span(Position(0, 0), Position(0, 0))


def modernized(entry: Path, files: Files, asked: Asked) -> Modernized:
    """The program of an entry, brought up to a current PyTorch in memory.

    Raises:
        SourceError: the entry cannot be read.
    """
    found = _read(entry, files, asked)
    closed: dict[Path, Refusal] = {}
    for _ in range(_MAX_ROUNDS):
        changes, left = _round(found.program, asked, closed)
        found.left = [*left, *closed.values()]
        if not changes:
            break
        for module, todo in changes.items():
            draft = found.drafts.get(module.path) or Draft.of(module, frozenset())
            draft.module = module  # the same text, parsed for the program of this round
            try:
                draft.make(apart(todo))
            except SourceError as error:
                closed[module.path] = _unchanged(module, error)
                continue
            found.drafts[module.path] = draft
        found.program = drafted(found.program, found.drafts)
    return found


def _round(program: Program, asked: Asked, closed: Iterable[Path]) -> tuple[dict[Module, list[Change]], list[Refusal]]:
    """What all rewrites would do to the program as it stands."""
    modules = [
        module for module in program.flow.modules if module.path not in closed and not is_part_of_apex(program, module)
    ]
    now = Old(program, modules)
    gone.report(now)
    made = asked.settled(change for rewrite in codemods.modern_rewrites() for change in rewrite(now))
    found: defaultdict[Module, list[Change]] = defaultdict(list)
    for change in made:
        found[change.module].append(change)
    return found, [item for code, item in now.left if asked.wants(code)]


def _unchanged(module: Module, error: SourceError) -> Refusal:
    why = refusal.OLD_PLACE
    return Refusal(module.path, None, why.code, why.name, "modern", error.message, "rewrite the file by hand")


# ---- files that do not parse -------------------------------------------------------------------------------


def _read(entry: Path, files: Files, asked: Asked) -> Modernized:
    """The program, with ``async=`` taken out of files that do not parse because of it."""
    from amp_rules.codemods.modern import non_blocking

    drafts: dict[Path, Draft] = {}
    path = entry.resolve()
    if not asked.wants(non_blocking.RULE.code):
        return Modernized(Program(Project(entry, files)))
    while True:
        try:
            program = Program(Project(entry, files))
        except SourceError as error:
            draft = _draft(files, error, is_entry=True) if error.path == path and path not in drafts else None
            if draft is None:
                raise
            found = {path: draft}
        else:
            errors = [error for error in program.project.unreadable if error.path not in drafts]
            read = {error.path: _draft(files, error, is_entry=False) for error in errors}
            found = {path: draft for path, draft in read.items() if draft is not None}
            if not found:
                return Modernized(program, drafts)
        drafts |= found
        files = files.with_texts({path: draft.module.source for path, draft in found.items()})


def _draft(files: Files, error: SourceError, *, is_entry: bool) -> Draft | None:
    from amp_rules.codemods.modern import non_blocking

    try:
        source: SourceFile = files.source(error.path)
        fixed = repaired(source)
    except SourceError:
        if is_entry:
            raise
        return None
    if fixed is None:
        return None
    text, places = fixed
    module = parse(text, is_entry=is_entry)
    original = unparsed(source, module)
    draft = Draft(original, module, list(range(1, len(module.lines) + 1)), frozenset())
    for line, column in places:
        span = Span(Position(line, column + 1), Position(line, column + 1 + len(old.ASYNC)))
        rule = non_blocking.RULE
        draft.edits.append(Edit(source.path, span, rule.code, rule.name, non_blocking.MESSAGE))
    return draft
