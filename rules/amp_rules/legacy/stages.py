"""The rewrites of older interfaces, one after the other over all files of a project."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from amp_rules.codemods.legacy import (
    availability,
    compat,
    functions,
    imports,
    initialize,
    local_rank,
    merge_groups,
    optimizers,
    parallel,
    same_branches,
    scale_loss,
    torch_amp,
)
from amp_rules.context import Change
from amp_rules.legacy.file import STAND_IN, LegacyFile, NotUnderstood, finished
from amp_rules.legacy.references import References
from amp_rules.options import Options
from amp_rules.program.modules import Module, parse
from amp_rules.program.source import SourceFile
from amp_rules.program.steps import Program
from amp_rules.report import Edit, Position, Span
from amp_rules.rewrite import apply
from amp_rules.tables import apex_api as api

Stage = Callable[[LegacyFile], Iterable[Change]]

_IDIOM: Sequence[Stage] = (
    availability.changes,
    same_branches.changes,
    scale_loss.changes,
    functions.changes,
    parallel.changes,
    merge_groups.changes,
    optimizers.changes,
    initialize.changes,
    imports.changes,
    torch_amp.changes,
    local_rank.changes,
)
_COMPAT: Sequence[Stage] = (compat.changes, torch_amp.changes, local_rank.changes)
_UP_TO_DATE: Sequence[Stage] = (torch_amp.changes, local_rank.changes)
_MAX_ROUNDS = 20


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
        """Where of the original a range of the present text stands."""
        if not self.changed:
            return span
        start, end = self._line(span.start.line), self._line(span.end.line)
        return Span(Position(start, 1), Position(max(start, end), len(self.original.lines[max(start, end) - 1]) + 1))

    def _line(self, line: int) -> int:
        return self.origins[min(line, len(self.origins)) - 1] if self.origins else 1

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


def uses_apex(program: Program) -> list[Module]:
    """The files of the program that import something of Apex."""
    return [
        module
        for module in program.flow.modules
        if _mentions(module) and not _is_part_of_apex(program, module) and _imports(module)
    ]


def calls_amp(program: Program) -> bool:
    """Whether the program uses ``apex.amp`` or its elders, and not only Apex's layers, optimizers and wrappers."""
    targets = (use.target for module in uses_apex(program) for use in References(module).uses)
    return any(
        target.startswith(("apex.amp", "apex.fp16_utils")) or target.endswith("FP16_Optimizer")
        for target in targets
        if not api.is_standalone(target)
    )


def idiom(program: Program, options: Options) -> list[Draft]:
    """The files without Apex.

    Raises:
        NotUnderstood: something of Apex is not known to have a counterpart.
    """
    drafts = _run(program, options, _IDIOM)
    for draft in drafts:
        text = draft.module.source.text
        if STAND_IN in text:
            draft.become(finished(text, draft.module))
    return drafts


def compatible(program: Program, options: Options) -> list[Draft]:
    """The files with Apex's interface from the runtime."""
    return _run(program, options, _COMPAT)


def up_to_date(program: Program, options: Options) -> list[Draft]:
    """The files of a program with mixed precision of its own, by its present names."""
    return _run(program, options, _UP_TO_DATE)


def _run(program: Program, options: Options, stages: Sequence[Stage]) -> list[Draft]:
    users = set(uses_apex(program))
    wanted = {module: _wanted_by(module) for module in program.project.modules}
    drafts = [
        Draft.of(module, frozenset().union(*(names for other, names in wanted.items() if other is not module)))
        for module in program.flow.modules
        if module in users or (_mentions_old_names(module) and not _is_part_of_apex(program, module))
    ]
    for stage in stages:
        for draft in drafts:
            _finish_stage(options, draft, stage)
    return [draft for draft in drafts if draft.changed]


def _finish_stage(options: Options, draft: Draft, stage: Stage) -> None:
    """Runs one rewrite until it finds nothing more: what it takes away can uncover another place."""
    for _ in range(_MAX_ROUNDS):
        file = LegacyFile(draft.module, options, draft.wanted_elsewhere)
        try:
            changes = _apart(list(stage(file)))
        except NotUnderstood as left:
            left.span = draft.place(left.span)
            raise
        if not changes:
            return
        for change in changes:
            span = draft.place(draft.module.span(change.node))
            message = change.message.replace(f"{STAND_IN}.", "amp.")
            draft.edits.append(Edit(draft.original.path, span, change.rule.code, change.rule.name, message))
        draft.become(apply(draft.module, [action for change in changes for action in change.actions]))


def _apart(changes: list[Change]) -> list[Change]:
    """Changes that do not touch each other; the inner of two comes first, the outer in the next round."""
    chosen: list[Change] = []
    taken: set[ast.AST] = set()
    for change in sorted(changes, key=lambda item: sum(1 for _ in ast.walk(item.node))):
        # Python shares one node for ``Load`` and for each operator among all trees.
        nodes = {node for node in ast.walk(change.node) if hasattr(node, "lineno")}
        if not nodes & taken:
            chosen.append(change)
            taken |= nodes
    return sorted(chosen, key=lambda item: item.module.start(item.node))


def _wanted_by(module: Module) -> set[str]:
    """Names that a file may take from other files: those that it imports, and its attributes."""
    names: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    return names


def _mentions(module: Module) -> bool:
    return any(name in module.source.text for name in api.ROOTS)


def _imports(module: Module) -> bool:
    references = References(module)
    return bool(references.statements or references.stars)


def _is_part_of_apex(program: Program, module: Module) -> bool:
    """Whether the file is Apex itself, in a project that holds a copy of it."""
    package = program.project.find(program.entry, "apex")
    return package is not None and package.path.parent in module.path.parents


def _mentions_old_names(module: Module) -> bool:
    return any(name in module.source.text for name in ("local_rank", "local-rank", "torch.cuda", "torch.cpu"))


def _parsed(module: Module, text: str) -> Module:
    source = module.source
    return parse(SourceFile(source.path, source.encode(text), text, source.encoding), is_entry=module.is_entry)
