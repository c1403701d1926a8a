"""Conditions on a variable, in a file that chose Apex by it, that ask for a value which it is nowhere given."""

from __future__ import annotations

import ast

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.flag_conditions import asks
from amp_rules.plan.apex.guards import bound_by
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk


def dead_choices(file: ApexFile) -> dict[ast.expr, bool]:
    """The comparisons and flags that are settled, of variables by which a branch with a use of Apex was chosen."""
    used = {use.node for use in file.references.uses}
    found: dict[tuple[Scope, str], dict[ast.expr, bool]] = {}
    chooses: set[tuple[Scope, str]] = set()
    for node in file.module.parents:
        asked = _asked(file, node)
        if asked is None:
            continue
        assert isinstance(node, ast.expr)
        name, value, holds = asked
        key = (file.references.scope_of(name).owner(name.id), name.id)
        values = _values(file, *key)
        if values is None or any(value == item if value is not True else item for item in values):
            continue
        found.setdefault(key, {})[node] = holds
        chosen = next((item for item in file.module.ancestors(node) if isinstance(item, ast.stmt)), None)
        if isinstance(chosen, ast.If) and any(part in used for item in chosen.body for part in walk(item)):
            chooses.add(key)
    return {node: told for key in chooses for node, told in found[key].items()}


def _asked(file: ApexFile, node: ast.AST) -> tuple[ast.Name, object, bool] | None:
    """The variable that a condition asks for a value, the value, and the outcome where it never has that.

    A flag is asked whether it is true.
    """
    if isinstance(node, ast.Name):
        return (node, True, False) if isinstance(node.ctx, ast.Load) and _is_flag(file, node) else None
    if not isinstance(node, ast.Compare) or not isinstance(node.left, ast.Name) or len(node.ops) != 1:
        return None
    value = node.comparators[0]
    if not isinstance(node.ops[0], (ast.Eq, ast.NotEq)) or not isinstance(value, ast.Constant):
        return None
    return node.left, value.value, isinstance(node.ops[0], ast.NotEq)


def _is_flag(file: ApexFile, node: ast.Name) -> bool:
    """Whether a name is a condition, or a part of one."""
    return asks(file, node) and not isinstance(file.module.parents[node], ast.Compare)


def _values(file: ApexFile, scope: Scope, name: str) -> list[object] | None:
    """All that a variable is given, where these are constants and nothing else can reach it."""
    if name in file.wanted_elsewhere:
        return None
    values: list[object] = []
    for node in file.module.nodes:
        if isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
            return None
        if isinstance(node, ast.arg) and node.arg == name and scope.is_function:
            return None
        if not isinstance(node, ast.Name) and name in bound_by(node):
            return None
        if not isinstance(node, ast.Name) or node.id != name or isinstance(node.ctx, ast.Load):
            continue
        if file.references.scope_of(node).owner(name) is not scope:
            continue
        statement = blocks.statement_of(file.module, node)
        if not isinstance(statement, ast.Assign) or statement.targets != [node]:
            return None
        if not isinstance(statement.value, ast.Constant):
            return None
        values.append(statement.value.value)
    return values or None
