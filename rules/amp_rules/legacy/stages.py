"""The rewrites of older interfaces, one after the other over all files of a project."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

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
from amp_rules.drafts import Draft, apart
from amp_rules.legacy.file import STAND_IN, LegacyFile, NotUnderstood, finished
from amp_rules.legacy.references import References
from amp_rules.planning.asked import Asked
from amp_rules.program.modules import Module
from amp_rules.program.steps import Program
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


def uses_apex(program: Program) -> list[Module]:
    """The files of the program that import something of Apex."""
    return [
        module
        for module in program.flow.modules
        if _mentions(module) and not is_part_of_apex(program, module) and _imports(module)
    ]


def calls_amp(program: Program) -> bool:
    """Whether the program uses ``apex.amp`` or its elders, and not only Apex's layers, optimizers and wrappers."""
    targets = (use.target for module in uses_apex(program) for use in References(module).uses)
    return any(
        target.startswith(("apex.amp", "apex.fp16_utils")) or target.endswith("FP16_Optimizer")
        for target in targets
        if not api.is_standalone(target)
    )


def idiom(program: Program, asked: Asked) -> list[Draft]:
    """The files without Apex.

    Raises:
        NotUnderstood: something of Apex is not known to have a counterpart.
        Declined: something that has one is to stay.
    """
    drafts = _run(program, asked, _IDIOM)
    for draft in drafts:
        text = draft.module.source.text
        if STAND_IN in text:
            draft.become(finished(text, draft.module))
    return drafts


def compatible(program: Program, asked: Asked) -> list[Draft]:
    """The files with Apex's interface from the runtime."""
    return _run(program, asked, _COMPAT)


def up_to_date(program: Program, asked: Asked) -> list[Draft]:
    """The files of a program with mixed precision of its own, by its present names."""
    return _run(program, asked, _UP_TO_DATE)


def _run(program: Program, asked: Asked, stages: Sequence[Stage]) -> list[Draft]:
    users = set(uses_apex(program))
    wanted = {module: _wanted_by(module) for module in program.project.modules}
    drafts = [
        Draft.of(module, frozenset().union(*(names for other, names in wanted.items() if other is not module)))
        for module in program.flow.modules
        if module in users or (_mentions_old_names(module) and not is_part_of_apex(program, module))
    ]
    for stage in stages:
        for draft in drafts:
            _finish_stage(asked, draft, stage)
    return [draft for draft in drafts if draft.changed]


def _finish_stage(asked: Asked, draft: Draft, stage: Stage) -> None:
    """Runs one rewrite until it finds nothing more: what it takes away can uncover another place."""
    for _ in range(_MAX_ROUNDS):
        file = LegacyFile(draft.module, asked.options, draft.wanted_elsewhere)
        try:
            changes = apart(asked.settled_draft(draft, list(stage(file))))
        except NotUnderstood as left:
            left.span = draft.place(left.span)
            raise
        if not changes:
            return
        draft.make(replace(change, message=change.message.replace(f"{STAND_IN}.", "amp.")) for change in changes)


def _wanted_by(module: Module) -> set[str]:
    """Names that a file may take from other files: those that it imports, and its attributes."""
    names: set[str] = set()
    for node in module.nodes:
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


def is_part_of_apex(program: Program, module: Module) -> bool:
    """Whether the file is Apex itself, in a project that holds a copy of it."""
    package = program.project.find(program.entry, "apex")
    return package is not None and package.path.parent in module.path.parents


def _mentions_old_names(module: Module) -> bool:
    return any(name in module.source.text for name in ("local_rank", "local-rank", "torch.cuda", "torch.cpu"))
