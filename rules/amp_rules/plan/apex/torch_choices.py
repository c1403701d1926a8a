"""What a file chooses Apex by that any present torch settles: tests of its version, imports from torch that fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.flag_conditions import simplified
from amp_rules.plan.apex.guards import catches_imports, remembered
from amp_rules.plan.apex.installed import questions
from amp_rules.plan.apex.references import is_apex
from amp_rules.source.resolver import bound_name, imported
from amp_rules.source.syntax import own_name, walk
from amp_rules.torch.idioms import VERSION_OF_TORCH, VERSION_PARSERS
from amp_rules.torch.mixed_precision import HAS_MIXED_PRECISION


@dataclass(frozen=True)
class TorchChoice:
    """A statement of which one part runs with every torch that has mixed precision of its own.

    Attributes:
        node: the statement.
        suites: the names of the suites that run.
        gone: the statements that do not.
        flags: the truth values that variables have after it.
        assignments: the statements that give them these.
    """

    node: ast.If | ast.Try
    suites: tuple[str, ...]
    gone: tuple[ast.stmt, ...]
    flags: dict[str, bool]
    assignments: tuple[ast.stmt, ...]


def torch_choices(file: ApexFile) -> Iterator[TorchChoice]:
    """Every statement of a file that leaves Apex to an older torch."""
    settled = version_tests(file)
    for node in file.module.nodes:
        if isinstance(node, ast.If):
            holds = simplified(file, node.test, {}, settled) if settled.keys() & set(walk(node.test)) else None
            if holds is True:
                yield from _choice(file, node, ("body",), node.body, node.orelse)
            elif holds is False:
                yield from _choice(file, node, ("orelse",), node.orelse, node.body)
        elif isinstance(node, ast.Try) and _tries_torch(node):
            yield from _choice(file, node, ("body", "orelse"), [*node.body, *node.orelse], node.handlers[0].body)


def _choice(
    file: ApexFile, node: ast.If | ast.Try, suites: tuple[str, ...], runs: list[ast.stmt], gone: list[ast.stmt]
) -> Iterator[TorchChoice]:
    parts = {part for item in gone for part in walk(item)}
    if parts.isdisjoint((*file.references.statements, *questions(file.module))):
        return
    flags: dict[str, bool] = {}
    assignments: list[ast.stmt] = []
    for name, owners, earlier in remembered(file, node):
        told = [item for item in owners if item in runs] or [item for item in owners if item in earlier]
        unsure = [item for item in owners if item not in runs and item not in earlier and item not in parts]
        if told and not unsure:
            value = told[-1].value  # type: ignore[attr-defined]
            flags[name] = bool(value.value)
            assignments += [item for item in owners if item not in parts]
    yield TorchChoice(node, suites, tuple(gone), flags, tuple(assignments))


def _tries_torch(node: ast.Try) -> bool:
    """Whether a ``try`` imports mixed precision from torch, and only that can fail in it."""
    if node.finalbody or len(node.handlers) != 1 or not catches_imports(node):
        return False
    names = [
        imported(item, alias)
        for item in node.body
        if isinstance(item, (ast.Import, ast.ImportFrom))
        for alias in item.names
    ]
    rest = [item for item in node.body if not isinstance(item, (ast.Import, ast.ImportFrom))]
    simple = all(isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant) for item in rest)
    return simple and bool(names) and all(name in HAS_MIXED_PRECISION and not is_apex(name) for name in names)


def substitutes(file: ApexFile) -> Iterator[ast.Try]:
    """Every ``try`` that takes mixed precision from torch, with classes and functions in its place for an older one."""
    for node in file.module.nodes:
        if not isinstance(node, ast.Try) or node.finalbody or node.orelse or len(node.handlers) != 1:
            continue
        taken: dict[str, str | None] = {}
        for item in node.body:
            if isinstance(item, (ast.Import, ast.ImportFrom)):
                taken.update({bound_name(alias): imported(item, alias) for alias in item.names})
            elif isinstance(item, ast.Assign) and len(item.targets) == 1 and isinstance(item.targets[0], ast.Name):
                taken[item.targets[0].id] = file.names.target(item.value)
            else:
                taken[""] = None
        given = {getattr(item, "name", None) for item in node.handlers[0].body}
        if taken and HAS_MIXED_PRECISION.issuperset(taken.values()) and given <= taken.keys():
            yield node


def version_tests(file: ApexFile) -> dict[ast.expr, bool]:
    """The tests of torch's version that all releases answer alike which have mixed precision, and their answers."""
    return {
        node: told
        for node in file.module.nodes
        if isinstance(node, ast.Compare) and (told := _told(file, node)) is not None
    }


def _told(file: ApexFile, node: ast.Compare) -> bool | None:
    if len(node.ops) != 1:
        return None
    left, op, right = node.left, node.ops[0], node.comparators[0]
    newer, older = isinstance(op, (ast.Gt, ast.GtE)), isinstance(op, (ast.Lt, ast.LtE))
    if _is_version(file, left) and _is_old(file, right):
        return True if newer else False if older else None
    if _is_version(file, right) and _is_old(file, left):
        return True if older else False if newer else None
    return None


def _is_version(file: ApexFile, node: ast.expr) -> bool:
    """Whether an expression is torch's version, as a text or read by one of the usual classes."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        return own_name(node.func) in VERSION_PARSERS and _is_version(file, node.args[0])
    return file.names.target(node) == VERSION_OF_TORCH


def _is_old(file: ApexFile, node: ast.expr) -> bool:
    """Whether an expression is the number of a release before the second, in which mixed precision came to torch."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        return own_name(node.func) in VERSION_PARSERS and _is_old(file, node.args[0])
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    return node.value.split(".")[0] in ("0", "1")
