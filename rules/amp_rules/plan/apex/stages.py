"""The rewrites of older interfaces, one after the other over all files of a project."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import replace

from amp_rules import rewrites
from amp_rules.plan.apex.as_written import AsWritten
from amp_rules.plan.apex.file import ApexFile, NotUnderstood
from amp_rules.plan.apex.guards import bound_by, guards, is_removed, stops
from amp_rules.plan.apex.handed_on import HandedOn, handed_on
from amp_rules.plan.apex.idle import is_idle, only_imports
from amp_rules.plan.apex.installed import is_question_of_transformers, questions
from amp_rules.plan.apex.local_ranks import LocalRanks
from amp_rules.plan.apex.references import References
from amp_rules.plan.apex.remarks import outdated, remarks, without
from amp_rules.plan.apex.scaled_gradients import require_averages
from amp_rules.plan.apex.torch_choices import substitutes, torch_choices
from amp_rules.plan.context import Change
from amp_rules.plan.drafts import Draft, apart
from amp_rules.plan.options import Options
from amp_rules.plan.report import Edit
from amp_rules.plan.rule import Rule
from amp_rules.plan.selection import Selection
from amp_rules.plan.vocabularies import chosen
from amp_rules.rewrites.loading import Rewrite
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.resolver import bound_name, imported, names_of
from amp_rules.source.syntax import walk
from amp_rules.text.actions import EditNames, Remove
from amp_rules.torch import apex as api

# Each round takes something away, so that this many are never needed; a rewrite that undid its own work would go on.
_MAX_ROUNDS = 20

_OF_VERSIONS = ("distutils", "packaging")
"""Packages that compare versions, and do nothing when they are imported."""


def uses_apex(program: Program) -> list[Module]:
    """The files of the program that import something of Apex; none where nothing comes to what they do with it."""
    found = [
        module
        for module in program.flow.modules
        if _mentions(module) and not is_part_of_apex(program, module) and _imports(module)
    ]
    return [] if all(is_idle(program, module) for module in found) else found


def only_imports_apex(program: Program) -> bool:
    """Whether nothing comes to what the program does with Apex, though its files import it where they are read."""
    users = uses_apex(program)
    return bool(users) and not _asking(program) and all(only_imports(program, module) for module in users)


def loads_apex_by_name(program: Program) -> bool:
    """Whether a file of the program imports something of Apex by a string: ``importlib.import_module("apex.amp")``."""
    return any(
        isinstance(node, ast.Call)
        and names_of(module).dotted(node.func) == "importlib.import_module"
        and any(isinstance(item, ast.Constant) and str(item.value).split(".")[0] == "apex" for item in node.args)
        for module in program.flow.modules
        if _mentions(module) and "import_module" in module.source.text and not is_part_of_apex(program, module)
        for node in module.nodes
    )


def _asking(program: Program) -> set[Module]:
    """The files that ask by its name whether Apex is there, whether they import it or not."""
    return {
        module
        for module in program.flow.modules
        if _mentions(module) and not is_part_of_apex(program, module) and any(questions(module))
    }


def calls_amp(program: Program) -> bool:
    """Whether the program uses ``apex.amp`` or its elders, and not only Apex's layers, optimizers and wrappers."""
    targets = (use.target for module in uses_apex(program) for use in References(module).uses)
    return any(
        target.startswith(("apex.amp", "apex.fp16_utils")) or target.endswith("FP16_Optimizer")
        for target in targets
        if not api.is_standalone(target)
    )


def is_half_by_hand(program: Program) -> bool:
    """Whether the program makes models or optimizers half by Apex's helpers, which no level of ``amp`` reaches."""
    targets = (use.target for module in uses_apex(program) for use in References(module).uses)
    return any(
        target.startswith("apex.fp16_utils") or target.endswith("FP16_Optimizer")
        for target in targets
        if not api.is_standalone(target)
    )


def has_substitutes(module: Module) -> bool:
    """Whether a file has classes of its own for an older torch, in the place of its mixed precision."""
    return (
        "except" in module.source.text and _mentions_old_names(module) and any(substitutes(ApexFile(module, Options())))
    )


def leaves_apex_to_older_torch(program: Program) -> bool:
    """Whether a file of the program uses Apex where torch has no mixed precision of its own."""
    return any(
        any(torch_choices(ApexFile(module, Options())))
        for module in uses_apex(program)
        if any(word in module.source.text for word in ("__version__", "torch.cuda", "torch.amp"))
    )


def initializing(program: Program) -> list[ast.Call]:
    """The calls of ``amp.initialize``."""
    return [call for module in uses_apex(program) for call in References(module).calls("apex.amp.initialize")]


def converts_batch_norm(program: Program) -> bool:
    """Whether the program synchronises batch norm itself, with Apex."""
    return any(References(module).calls("apex.parallel.convert_syncbn_model") for module in uses_apex(program))


def idiom(program: Program, selection: Selection) -> list[Draft]:
    """The files without Apex.

    Raises:
        NotUnderstood: something of Apex is not known to have a counterpart.
        Declined: something that has one is to stay.
    """
    require_averages(program, [ApexFile(module, selection.options) for module in uses_apex(program)])
    drafts = _run(program, selection, "idiom")
    vocabulary = chosen(selection.options)
    for draft in drafts:
        before = draft.module.source.text
        after = vocabulary.finished(before, draft.module)
        if after != before:
            draft.become(after)
    return drafts


def compatible(program: Program, selection: Selection) -> list[Draft]:
    """The files with Apex's interface from the runtime."""
    return _run(program, selection, "compat")


def beside_torch(program: Program, selection: Selection) -> list[Draft] | None:
    """The files of a program with torch's mixed precision, without what only runs where Apex is there.

    Files that would keep a use of Apex stay as they are, where a guard lets them go on without it. None where one does
    not.

    Raises:
        Declined: something that has to go is to stay.
    """
    users = uses_apex(program)
    wanted = {module: _wanted_by(module) for module in program.project.modules}
    found: list[Draft] = []
    ranks = LocalRanks(program)
    for module in program.flow.modules:
        if is_part_of_apex(program, module) or not (module in users or _mentions_old_names(module)):
            continue
        elsewhere = frozenset().union(*(names for other, names in wanted.items() if other is not module))
        draft = Draft.of(module, elsewhere)
        try:
            for rewrite in rewrites.of_apex("beside torch"):
                _finish(selection, draft, rewrite, HandedOn(), ranks, AsWritten())
            is_whole = not any(is_removed(name) for name in _imported(draft.module)) and not _lost(draft)
        except NotUnderstood:
            is_whole = False
        if is_whole:
            _without_unused(program, draft)
            _without_remarks(selection, draft, in_help=False)
        elif _goes_on(module, selection):
            draft = Draft.of(module, elsewhere)
        else:
            return None
        found.append(draft)
    return [draft for draft in found if draft.changed]


def _lost(draft: Draft) -> set[str]:
    """Names of Apex that are still read and that nothing binds any more."""
    names = {item.name for item in References(draft.original).bindings} & _read(draft.module)
    return names - {name for node in draft.module.nodes for name in bound_by(node)}


def _imported(module: Module) -> Iterator[str | None]:
    references = References(module)
    for statement in references.statements:
        yield from (imported(statement, alias) for alias in statement.names)
    yield from (node.module for node in references.star_imports)


def _goes_on(module: Module, selection: Selection) -> bool:
    """Whether all imports of what Apex has removed stand in guards after which the file goes on."""
    file = ApexFile(module, selection.options)
    guarded = {part for guard in guards(file) if not stops(guard) for item in guard.node.body for part in walk(item)}
    return not any(questions(module)) and all(
        statement in guarded
        for statement in (*file.references.statements, *file.references.star_imports)
        if any(is_removed(imported(statement, alias)) for alias in statement.names)
        or is_removed(getattr(statement, "module", None))
        or any(imported(statement, alias) == "apex" for alias in statement.names)
    )


def _without_unused(program: Program, draft: Draft) -> None:
    """Take imports and flags out that were used in the branches which went, and there alone."""
    from amp_rules.rewrites.apex.beside_torch import RULE

    if not draft.changed:
        return
    gone = _gone(draft)
    changes = [*_unused_imports(program, draft, gone, RULE)]
    shared = {name for node in draft.module.nodes if isinstance(node, ast.Global) for name in node.names}
    for item in draft.module.nodes:
        if not isinstance(item, ast.Assign) or not isinstance(item.value, ast.Constant):
            continue
        names = {target.id if isinstance(target, ast.Name) else None for target in item.targets}
        if names <= gone - shared and len(blocks.place(draft.module, item).suite) > 1:
            changes.append(Change(RULE, draft.module, item, "only what is gone asked it", [Remove(item)]))
    if changes:
        draft.make(changes)


def _without_unused_imports(program: Program, selection: Selection, draft: Draft) -> None:
    """Take imports out that only the guards and calls of Apex's used: ``import warnings``, ``get_world_size``."""
    from amp_rules.rewrites.apex.imports import RULE

    if not draft.changed:
        return
    changes = selection.settled(_unused_imports(program, draft, _gone(draft), RULE), draft=draft)
    if not changes:
        return
    draft.make(changes)
    text = draft.module.source.text
    if text[:1] in "\r\n" and draft.original.source.text[:1] not in "\r\n":
        draft.become(text.lstrip("\r\n"))  # the first line went, and the gap below it is left


def _gone(draft: Draft) -> set[str]:
    """The names that a file read and reads no more."""
    return _read(draft.original) - _read(draft.module) - draft.wanted_elsewhere


def _unused_imports(program: Program, draft: Draft, gone: set[str], rule: Rule) -> Iterator[Change]:
    for node in draft.module.tree.body:
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        unused = [alias for alias in node.names if bound_name(alias) in gone]
        if len(unused) == len(node.names) and (
            all(_does_nothing(node, alias) for alias in unused) or _is_of_plain_file(program, draft.original, node)
        ):
            yield Change(rule, draft.module, node, "only what is gone used it", [Remove(node)], optional=True)
        elif unused and len(unused) < len(node.names):
            action = EditNames(node, {alias.name: None for alias in unused})
            yield Change(rule, draft.module, node, "only what is gone used it", [action], optional=True)


def _does_nothing(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    """Whether an import is one of Python's own modules, or of versions; others can do something when imported."""
    name = node.module if isinstance(node, ast.ImportFrom) and not node.level else alias.name
    if is_question_of_transformers(f"{name}.{alias.name}"):
        return True
    return name is not None and name.split(".")[0] in (*sys.stdlib_module_names, *_OF_VERSIONS)


def _is_of_plain_file(program: Program, module: Module, node: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import takes functions from a file of the project that does nothing but define some."""
    if not isinstance(node, ast.ImportFrom) or node.module is None:
        return False
    parts = node.module.split(".")
    *packages, last = [
        program.project.find(module, ".".join(parts[: end + 1]), node.level) for end in range(len(parts))
    ]
    if last is None or not all(item is None or _only_defines(item) for item in (*packages, last)):
        return False
    made = {item.name for item in last.tree.body if isinstance(item, ast.FunctionDef)}
    return all(alias.name in made for alias in node.names)


def _only_defines(module: Module) -> bool:
    """Whether the suite of a file has functions alone, with imports of Python's own modules and torch's."""
    for item in module.tree.body:
        if isinstance(item, (ast.Import, ast.ImportFrom)):
            if not all(_does_nothing(item, alias) or _is_of_torch(item, alias) for alias in item.names):
                return False
        elif isinstance(item, ast.FunctionDef):
            if item.decorator_list or not all(map(_is_constant, (*item.args.defaults, *item.args.kw_defaults))):
                return False
        elif not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)):
            return False
    return True


def _is_constant(default: ast.expr | None) -> bool:
    return default is None or isinstance(default, ast.Constant)


def _is_of_torch(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    name = imported(node, alias)
    return name is not None and name.split(".")[0] == "torch"


def _read(module: Module) -> set[str]:
    """Names that a file reads, or exports by a string."""
    found = {node.id for node in module.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return found | {
        node.value for node in module.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def up_to_date(program: Program, selection: Selection) -> list[Draft]:
    """The files of a program with mixed precision of its own, by its present names."""
    return _run(program, selection, "present names")


def _run(program: Program, selection: Selection, way: str) -> list[Draft]:
    users = set(uses_apex(program)) | _asking(program)
    kept = handed_on(program, users) if way == "idiom" else HandedOn()
    wanted = {module: _wanted_by(module) for module in program.project.modules}
    users |= kept.files
    drafts = [
        Draft.of(module, frozenset().union(*(names for other, names in wanted.items() if other is not module)))
        for module in program.flow.modules
        if module in users or (_mentions_old_names(module) and not is_part_of_apex(program, module))
    ]
    ranks, as_written = LocalRanks(program), AsWritten(program)
    for rewrite in rewrites.of_apex(way):
        for draft in drafts:
            _finish(selection, draft, rewrite, kept, ranks, as_written)
    if way == "idiom":
        for draft in drafts:
            _without_unused_imports(program, selection, draft)
            _without_remarks(selection, draft)
    return [draft for draft in drafts if draft.changed]


def _finish(
    selection: Selection,
    draft: Draft,
    rewrite: Rewrite[ApexFile],
    kept: HandedOn,
    ranks: LocalRanks,
    as_written: AsWritten,
) -> None:
    """Runs one rewrite until it finds nothing more: what it takes away can uncover another place."""
    for _ in range(_MAX_ROUNDS):
        file = ApexFile(draft.module, selection.options, draft.wanted_elsewhere, kept, as_written, ranks)
        try:
            changes = apart(selection.settled(rewrite.changes(file), draft=draft))
        except NotUnderstood as left:
            left.span = draft.place(left.span)
            raise
        if not changes:
            return
        draft.make(replace(change, message=file.vocabulary.shown(change.message)) for change in changes)


def _without_remarks(selection: Selection, draft: Draft, *, in_help: bool = True) -> None:
    """Take out what is said of Apex in passing, except where a comment keeps a line as it is."""
    from amp_rules.rewrites.apex.imports import RULE

    skips = [skip for skip in selection.skips(draft.original) if skip.names(RULE.code)]
    found = []
    old = outdated(draft.original, draft.module, draft.origins)
    lines = {span.start.line for span in old}
    for span in (*old, *(item for item in remarks(draft.module, in_help=in_help) if item.start.line not in lines)):
        place = draft.place(span)
        line = place.start.line
        if not any(skip.line == line or skip.holds_for(line, place.end.line) for skip in skips):
            found.append(span)
            message = "this remark about Apex is out of date"
            draft.edits.append(Edit(draft.original.path, place, RULE.code, RULE.name, message))
    if found:
        draft.become(without(draft.module, found))


def _wanted_by(module: Module) -> set[str]:
    """Names that a file may take from other files: those that it imports, and its attributes, where not torch's."""
    names: set[str] = set()
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom):
            if node.level or (node.module or "").split(".")[0] not in _OF_VERSIONS:
                names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and not (names_of(module).target(node) or "").startswith("torch."):
            names.add(node.attr)
    return names


def _mentions(module: Module) -> bool:
    return any(name in module.source.text for name in api.ROOTS)


def _imports(module: Module) -> bool:
    references = References(module)
    return bool(references.statements or references.star_imports)


_PACKAGES = ("apex.amp", "apex.parallel", "apex.optimizers", "apex.fp16_utils", "apex.normalization")


def is_part_of_apex(program: Program, module: Module) -> bool:
    """Whether the file is Apex itself, in a project that holds a copy of it, or of some of its packages alone."""
    if "apex" not in module.path.parts:
        return False
    copies = (program.project.find(program.entry, name) for name in ("apex", *_PACKAGES))
    tops = (parent for copy in copies if copy is not None for parent in copy.path.parents if parent.name == "apex")
    return any(top in module.path.parents for top in tops)


def _mentions_old_names(module: Module) -> bool:
    return any(name in module.source.text for name in ("local_rank", "local-rank", "torch.cuda", "torch.cpu"))
