"""Imports of Apex that may fail: the ``try`` around them, what its handler gives, and what remembers the outcome."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.references import is_apex
from amp_rules.source import blocks
from amp_rules.source.index import ends_process
from amp_rules.source.resolver import bound_name, imported
from amp_rules.source.syntax import walk
from amp_rules.torch import apex as api

_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError"})
_ANY_ERRORS = frozenset({*_IMPORT_ERRORS, "Exception", "AttributeError"})


@dataclass(frozen=True)
class Guard:
    """A ``try`` around imports of Apex, the names of Apex in it, and what its handlers define."""

    node: ast.Try
    names: frozenset[str]
    defined: frozenset[str]
    nothing: frozenset[str]

    @property
    def is_substituted(self) -> bool:
        """Whether the handler has a substitute for every name; with fewer, the script did without the others."""
        return bool(self.names) and self.names <= self.defined


def guards(file: ApexFile, *, alone: bool = True) -> Iterator[Guard]:
    """Every ``try`` of a file that is there for imports of Apex.

    Args:
        file: the file.
        alone: whether those are left out that import other packages beside it.
    """
    for node in file.module.parents:
        if not isinstance(node, ast.Try) or node.finalbody or len(node.handlers) != 1:
            continue
        imports = [item for item in node.body if isinstance(item, (ast.Import, ast.ImportFrom))]
        apex = {*file.references.statements, *file.references.star_imports}
        ours = [item for item in imports if item in apex or all(_is_for_apex(item, alias) for alias in item.names)]
        names = {
            alias.asname or alias.name.split(".")[0]
            for item in imports
            for alias in item.names
            if is_apex(imported(item, alias)) or _is_for_apex(item, alias)
        }
        if not ours or (alone and len(ours) < len(imports)) or not catches_imports(node):
            continue
        defined, nothing = _definitions(node.handlers[0].body)
        if names and _is_only_taken_from(file, node, names):
            # ``flatten = apex_C.flatten``: what the rest of the file has of the import.
            names = {name for item in node.body if isinstance(item, ast.Assign) for name in bound_by_all(item)}
        yield Guard(node, frozenset(names), frozenset(defined), frozenset(nothing))


def _is_for_apex(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    """Whether something of a library is for Apex alone: ``from timm.utils import ApexScaler``."""
    return imported(statement, alias) in api.SCALERS_OF_LIBRARIES


def bound_by_all(node: ast.AST) -> Iterator[str]:
    """The names that a node and its parts bind."""
    for part in walk(node):
        yield from bound_by(part)


def _is_only_taken_from(file: ApexFile, node: ast.Try, names: set[str]) -> bool:
    """Whether what is imported is read in the ``try`` alone, by assignments of its members to variables."""
    inside = set(walk(node))
    reads = [item for item in file.module.nodes if isinstance(item, ast.Name) and item.id in names]
    members = [item.value for item in node.body if isinstance(item, ast.Assign)]
    return (
        bool(members)
        and not names & file.wanted_elsewhere
        and all(
            item in inside
            and isinstance(file.module.parents[item], ast.Attribute)
            and file.module.parents[item] in members
            for item in reads
        )
    )


def catches_imports(node: ast.Try) -> bool:
    """Whether the handler is there for a failing import alone, by its kind or because nothing else can fail."""
    handler = node.handlers[0]
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    named = [kind.id for kind in kinds if isinstance(kind, ast.Name)]
    if len(named) == len(kinds) and all(name in _IMPORT_ERRORS for name in named):
        return True
    anything = all(kind is None or (isinstance(kind, ast.Name) and kind.id in _ANY_ERRORS) for kind in kinds)
    return anything and (all(_cannot_fail(item) for item in node.body) or _wants_apex(node))


def _wants_apex(node: ast.Try) -> bool:
    """Whether the handler does no more than to say that Apex is missing, and to end; an import of it comes first."""
    handler = node.handlers[0]
    says = [item.value for item in walk(handler) if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    plain = all(
        isinstance(item, (ast.Raise, ast.Return, ast.Pass))
        or (isinstance(item, ast.Expr) and isinstance(item.value, ast.Call))
        for item in handler.body
    )
    return plain and isinstance(node.body[0], (ast.Import, ast.ImportFrom)) and any(map(api.NAMES_APEX.search, says))


def _cannot_fail(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, (ast.Import, ast.ImportFrom, ast.Pass))


def _definitions(suite: Iterable[ast.stmt]) -> tuple[set[str], set[str]]:
    """Names that a handler gives a substitute, and names that it gives nothing: None or False."""
    defined: set[str] = set()
    nothing: set[str] = set()
    for item in suite:
        if isinstance(item, (ast.ClassDef, ast.FunctionDef)):
            defined.add(item.name)
        elif isinstance(item, (ast.Import, ast.ImportFrom)):
            defined |= {alias.asname or alias.name.split(".")[0] for alias in item.names}
        elif isinstance(item, ast.Assign):
            empty = isinstance(item.value, ast.Constant) and item.value.value in (None, False)
            for target in item.targets:
                if isinstance(target, ast.Name):
                    (nothing if empty else defined).add(target.id)
    return defined, nothing


def was_removed(file: ApexFile, guard: Guard) -> bool:
    """Whether an import in it asks for a part that Apex has removed, so that it fails with any present version."""
    inside = set(walk(guard.node))
    return any(
        is_removed(target)
        for item in file.references.statements
        if item in inside
        for target in (imported(item, alias) for alias in item.names)
    )


def is_removed(target: str | None) -> bool:
    """Whether a qualified name belongs to a part of Apex that present versions have not."""
    if target is None or not is_apex(target):
        return False
    removed = target.startswith(("apex.amp", "apex.parallel", "apex.fp16_utils"))
    return removed and not api.is_standalone(target)


def stops(guard: Guard) -> bool:
    """Whether the handler ends the script, or a function."""
    inside = list(walk(guard.node.handlers[0]))
    ends = (ast.Raise, ast.Return, ast.Break, ast.Continue)
    return any(isinstance(item, ends) or (isinstance(item, ast.Call) and ends_process(item)) for item in inside)


def bound_by(node: ast.AST) -> Iterator[str]:
    """The names that a node binds."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        yield node.name
    elif isinstance(node, ast.alias):
        yield bound_name(node)


@dataclass(frozen=True)
class Flag:
    """A variable that holds nothing but the outcome of the ``try``.

    Attributes:
        name: the variable.
        success: its value where the imports succeed.
        failure: its value where one of them fails; None where that isn't certain.
        assignments: all that give it a value.
    """

    name: str
    success: bool | None
    failure: bool | None
    assignments: list[ast.stmt]


def flags(file: ApexFile, node: ast.Try) -> Iterator[Flag]:
    """The variables that remember what came of a ``try``."""
    success = {item for part in (*node.body, *node.orelse) for item in walk(part)}
    failure = {item for handler in node.handlers for item in walk(handler)}
    for name, owners, earlier in remembered(file, node):
        at_first = [item for item in owners if item in earlier]
        tried = [item for item in owners if item in success] or at_first
        failed = [item for item in owners if item in failure] or (
            at_first if not _is_set_before_imports(file, node, owners) else []
        )
        yield Flag(name, _value(tried), _value(failed), owners)


def remembered(file: ApexFile, node: ast.stmt) -> Iterator[tuple[str, list[ast.stmt], set[ast.stmt]]]:
    """The variables that get truth values in a statement, or before it in the same suite, and nowhere else.

    Yields:
        The variable, all that give it a value, and what stands before the statement.
    """
    scope = file.references.scope_of(node)
    here = set(walk(node))
    before = blocks.place(file.module, node)
    earlier = set(before.suite[: before.index])
    names = {
        target.id
        for item in here
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, bool)
        for target in item.targets
        if isinstance(target, ast.Name)
    }
    for name in sorted(names - file.wanted_elsewhere):
        stores = [
            item
            for item in file.module.parents
            if isinstance(item, ast.Name) and item.id == name and isinstance(item.ctx, (ast.Store, ast.Del))
        ]
        owners = [blocks.statement_of(file.module, item) for item in stores]
        if any(file.references.scope_of(item).owner(name) is not scope.owner(name) for item in stores):
            continue
        simple = all(
            isinstance(item, ast.Assign)
            and len(item.targets) == 1
            and isinstance(item.value, ast.Constant)
            and isinstance(item.value.value, bool)
            and (item in here or item in earlier)
            for item in owners
        )
        if simple:
            yield name, owners, earlier


def _is_set_before_imports(file: ApexFile, node: ast.Try, owners: list[ast.stmt]) -> bool:
    """Whether the ``try`` gives the variable a value before an import in it can fail."""
    imports = [item for item in node.body if item in file.references.statements]
    last = max((node.body.index(item) for item in imports), default=0)
    return any(item in owners for part in node.body[:last] for item in walk(part))


def _value(assignments: list[ast.stmt]) -> bool | None:
    """What the last of some assignments of a truth value gives."""
    last = assignments[-1] if assignments else None
    return bool(last.value.value) if isinstance(last, ast.Assign) and isinstance(last.value, ast.Constant) else None
