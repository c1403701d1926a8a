"""Bringing a program's files up to a current PyTorch, before anything else is decided about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from amp_rules import rewrites
from amp_rules.plan import declining, notes
from amp_rules.plan.apex.stages import is_part_of_apex
from amp_rules.plan.context import Change
from amp_rules.plan.drafts import Draft, apart, drafted, joined
from amp_rules.plan.file_names import name_of
from amp_rules.plan.old_torch import removed
from amp_rules.plan.old_torch.async_argument import repaired, unparsed
from amp_rules.plan.old_torch.old import OldProgram
from amp_rules.plan.report import Edit, Refusal, Report
from amp_rules.plan.selection import Selection
from amp_rules.rewrites.loading import Rewrite
from amp_rules.roles.program import Program
from amp_rules.source.files import Files
from amp_rules.source.modules import Module, parse
from amp_rules.source.project import Project
from amp_rules.source.spans import Position, Span
from amp_rules.source.text import SourceError, SourceFile
from amp_rules.torch import old_torch as old

# A round takes at least one old name out of a place; nested places need one each, and no script nests so deeply.
_MAX_ROUNDS = 12


@dataclass
class Modernized:
    """A program by the names of a current PyTorch.

    Attributes:
        program: the program, changed.
        drafts: the files that were changed.
        left: what was left as it is, at its places in the changed files.
        is_asked: whether the user asked for it; otherwise the program is one that uses Apex.
    """

    program: Program
    drafts: dict[Path, Draft] = field(default_factory=dict)
    left: list[Refusal] = field(default_factory=list)
    is_asked: bool = True

    def joined(self, report: Report) -> Report:
        """The report of the changed program as one of the program on disk.

        A program that nobody asked to modernize is left as it is where nothing else is done to it.
        """
        if not self.is_asked:
            return self._joined_by_default(report)
        kept = sorted(self.left, key=lambda item: (str(item.path), item.span or _NOWHERE, item.message))
        return joined(self.drafts, replace(report, refusals=(*report.refusals, *kept)))

    def _joined_by_default(self, report: Report) -> Report:
        found = joined(self.drafts, report)
        if not report.changes:
            return replace(found, changes=(), edits=())
        codes = sorted({edit.code for draft in self.drafts.values() for edit in draft.edits})
        if not codes:
            return found
        changed = dict.fromkeys(_OF_OTHERS.get(code, "PyTorch") for code in sorted(codes, key=_OF_OTHERS.__contains__))
        text = (
            f"names and calls of Apex's time that a current {' or '.join(changed)} refuses or has renamed are "
            f"replaced too, as far as they are known ({', '.join(codes)}); --no-modernize leaves them"
        )
        if self.left:
            text += f"; {_count(len(self.left))} ({self._places()}), which --modernize tells about"
        return replace(found, notes=(*found.notes, notes.note(notes.OLD_TORCH, self.program.entry, None, text)))

    def _places(self) -> str:
        """Where something was left, by the files on disk; the first few."""
        names = {module.path: name_of(self.program, module) for module in self.program.flow.modules}
        found = []
        for item in sorted(self.left, key=lambda item: (str(item.path), item.span or _NOWHERE)):
            name = names.get(item.path, item.path.name)
            draft = self.drafts.get(item.path)
            span = draft.place(item.span) if draft is not None and item.span is not None else item.span
            found.append(name if span is None or self.program.entry.cells else f"{name}:{span.start.line}")
        told = list(dict.fromkeys(found))
        return ", ".join([*told[:_NAMED], *(["..."] if len(told) > _NAMED else [])])


_OF_OTHERS = {"AMP514": "NumPy", "AMP515": "Python"}
"""Rewrites of what is not PyTorch's."""


def _count(places: int) -> str:
    return "one place stays" if places == 1 else f"{places} places stay"


_NAMED = 3
"""Places that are named in the sentence of a note."""

_NOWHERE = Span(Position(0, 0), Position(0, 0))


def modernized(
    entry: Path, files: Files, selection: Selection, program: Program | None = None, *, is_asked: bool = True
) -> Modernized:
    """The program of an entry, brought up to a current PyTorch in memory.

    Args:
        entry: the script that is run.
        files: what is on disk.
        selection: what was asked for.
        program: the program as it stands, where it was read already.
        is_asked: whether the user asked for it; otherwise what still runs stays.

    Raises:
        SourceError: the entry cannot be read.
    """
    is_read = program is not None and not program.project.unreadable
    found = Modernized(program) if program is not None and is_read else _read(entry, files, selection)
    found.is_asked = is_asked
    rules = [item for item in rewrites.of_old_torch() if is_asked or not item.rule.only_asked]
    closed: dict[Path, Refusal] = {}
    for _ in range(_MAX_ROUNDS):
        changes, left = _round(found.program, selection, closed, rules)
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


def _round(
    program: Program, selection: Selection, closed: Iterable[Path], rules: list[Rewrite[OldProgram]]
) -> tuple[dict[Module, list[Change]], list[Refusal]]:
    """What all rewrites would do to the program as it stands."""
    modules = [
        module for module in program.flow.modules if module.path not in closed and not is_part_of_apex(program, module)
    ]
    now = OldProgram(program, modules)
    removed.report(now)
    made = selection.settled(change for rewrite in rules for change in rewrite.changes(now))
    found: defaultdict[Module, list[Change]] = defaultdict(list)
    for change in made:
        found[change.module].append(change)
    return found, [item for code, item in now.left if selection.wants(code)]


def _unchanged(module: Module, error: SourceError) -> Refusal:
    why = declining.OLD_PLACE
    return Refusal(module.path, None, why.code, why.name, "modern", error.message, "rewrite the file by hand")


# ---- files that do not parse -------------------------------------------------------------------------------


def _read(entry: Path, files: Files, selection: Selection) -> Modernized:
    """The program, with ``async=`` taken out of files that do not parse because of it."""
    from amp_rules.rewrites.old_torch import non_blocking

    drafts: dict[Path, Draft] = {}
    path = entry.resolve()
    if not selection.wants(non_blocking.RULE.code):
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
    from amp_rules.rewrites.old_torch import non_blocking

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
