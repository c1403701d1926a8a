"""Texts on their way: what earlier rewrites made of the files, which the next one starts from.

Some rewrites must see what others have done, so they work on a *draft* of each file. At the end the result is told as
one change of the files on disk, with every edit at its place there.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from amp_rules.plan.context import Change
from amp_rules.plan.report import Edit, FileChange, Note, Refusal, Report, in_order
from amp_rules.roles.program import Program
from amp_rules.roles.uncalled import without_idle_steps
from amp_rules.source.modules import Module, parse
from amp_rules.source.project import Project
from amp_rules.source.spans import Position, Span
from amp_rules.source.syntax import walk
from amp_rules.source.text import SourceError, SourceFile
from amp_rules.text.applying import apply

_Told = TypeVar("_Told", Refusal, Note)


@dataclass
class Draft:
    """A file on its way: its present text, and which line of the original each of its lines comes from.

    Attributes:
        original: the file as it is on disk.
        module: its present text.
        origins: for each present line the line, from 1, of the original that it stands for.
        wanted_elsewhere: names that other files of the project import or read as attributes.
        edits: what was done, at places of the original.
    """

    original: Module
    module: Module
    origins: list[int]
    wanted_elsewhere: frozenset[str]
    edits: list[Edit] = field(default_factory=list)

    @classmethod
    def of(cls, module: Module, wanted_elsewhere: frozenset[str]) -> Draft:
        """The file untouched."""
        return cls(module, module, list(range(1, len(module.lines) + 1)), wanted_elsewhere)

    @property
    def changed(self) -> bool:
        """Whether the text differs from the original."""
        return self.module.source.text != self.original.source.text

    def place(self, span: Span) -> Span:
        """Where of the original a range of the present text stands; whole lines where they differ."""
        if not self.changed:
            return span
        start, end = self._line(span.start.line), self._line(span.end.line)
        if self._kept(span.start.line, start) and self._kept(span.end.line, end):
            return Span(Position(start, span.start.column), Position(end, span.end.column))
        start, end = self._written(start), self._written(max(start, end))
        return Span(Position(start, 1), Position(end, len(self.original.lines[end - 1]) + 1))

    def _written(self, line: int) -> int:
        """The line, or the last one above it where it is empty, as the one above which something was put may be."""
        while line > 1 and not self.original.lines[line - 1].strip():
            line -= 1
        return line

    def _line(self, line: int) -> int:
        return self.origins[min(line, len(self.origins)) - 1] if self.origins else 1

    def _kept(self, line: int, original: int) -> bool:
        return line <= len(self.module.lines) and self.module.lines[line - 1] == self.original.lines[original - 1]

    def make(self, changes: Iterable[Change]) -> None:
        """Carries out changes of the present text, and notes them as edits of the original."""
        changes = list(changes)
        for change in changes:
            span = self.place(self.module.span(change.node))
            self.edits.append(Edit(self.original.path, span, change.rule.code, change.rule.name, change.message))
        self.become(apply(self.module, [action for change in changes for action in change.actions]))

    def become(self, text: str) -> None:
        """Takes a new text, and finds its lines in the old one."""
        before, module = self.module, _parsed(self.module, text)
        origins: list[int] = []
        matcher = difflib.SequenceMatcher(None, before.lines, module.lines, autojunk=False)
        for tag, old_start, old_end, new_start, new_end in matcher.get_opcodes():
            for index in range(new_end - new_start):
                old = old_start + index if tag == "equal" else min(old_start + index, max(old_start, old_end - 1))
                origins.append(self._line(old + 1))
        self.module, self.origins = module, origins


def apart(changes: list[Change]) -> list[Change]:
    """Changes that do not touch each other; the inner of two comes first, the outer in the next round."""
    chosen: list[Change] = []
    taken: set[ast.AST] = set()
    for change in sorted(changes, key=lambda item: sum(1 for _ in walk(item.node))):
        # Python shares one node for ``Load`` and for each operator among all trees.
        nodes = {node for node in walk(change.node) if hasattr(node, "lineno")}
        if not nodes & taken:
            chosen.append(change)
            taken |= nodes
    return sorted(chosen, key=lambda item: item.module.start(item.node))


def drafted(program: Program, drafts: Mapping[Path, Draft]) -> Program:
    """The program with the drafts in place of its files."""
    texts = {path: draft.module.source for path, draft in drafts.items()}
    files = program.project.files.with_texts(texts)
    for path, draft in drafts.items():
        if draft.changed:
            files.origins[path] = [draft.original.line_on_disk(line) for line in draft.origins]
    found = Program(Project(program.entry.path, files))
    found.told_optimizers = program.told_optimizers
    found = without_idle_steps(found)
    found.told_owners, found.told_optimizers = program.told_owners, program.told_optimizers
    return found


def joined(drafts: Mapping[Path, Draft], report: Report) -> Report:
    """The report of the drafted program as one of the program on disk."""
    texts = {draft.original.path: (draft.original.source.text, draft.module.source.text) for draft in drafts.values()}
    for change in report.changes:
        before, _ = texts.get(change.path, (change.before, ""))
        texts[change.path] = (before, change.after)
    edits = [edit for draft in drafts.values() for edit in draft.edits]
    for edit in report.edits:
        draft = drafts.get(edit.path)
        edits.append(edit if draft is None else replace(edit, span=draft.place(edit.span)))
    return replace(
        report,
        changes=_files(texts),
        edits=in_order(edits),
        refusals=tuple(_placed(item, drafts) for item in report.refusals),
        notes=tuple(_placed(item, drafts) for item in report.notes),
    )


def changes_of(drafts: Iterable[Draft]) -> tuple[FileChange, ...]:
    """What the drafts make of the files on disk."""
    return _files({draft.original.path: (draft.original.source.text, draft.module.source.text) for draft in drafts})


def edits_of(drafts: Iterable[Draft]) -> tuple[Edit, ...]:
    """What was done, in order."""
    return in_order(edit for draft in drafts for edit in draft.edits)


def _files(texts: Mapping[Path, tuple[str, str]]) -> tuple[FileChange, ...]:
    found = [FileChange(path, before, after) for path, (before, after) in texts.items() if before != after]
    return tuple(sorted(found, key=lambda item: str(item.path)))


def _placed(item: _Told, drafts: Mapping[Path, Draft]) -> _Told:
    """What is told of the drafted program, at its place in the program on disk."""
    draft = drafts.get(item.path)
    if draft is None or item.span is None:
        return item
    return replace(item, span=draft.place(item.span))


def _parsed(module: Module, text: str) -> Module:
    source = module.source
    try:
        return parse(SourceFile(source.path, source.encode(text), text, source.encoding), is_entry=module.is_entry)
    except SourceError as error:
        # The user's file was sound, or there would be no draft of it.
        raise RuntimeError(f"the draft of {source.path.name} does not parse ({error.message})") from error
