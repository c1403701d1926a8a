"""Comparisons of a variable with a value that it is nowhere given, in a file that chose Apex by it."""

from __future__ import annotations

import ast

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.guards import bound_by
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk


def dead_choices(file: ApexFile) -> dict[ast.expr, bool]:
    """The comparisons that are settled, of variables by which a branch with a use of Apex was chosen."""
    used = {use.node for use in file.references.uses}
    found: dict[tuple[Scope, str], dict[ast.expr, bool]] = {}
    chooses: set[tuple[Scope, str]] = set()
    for node in file.module.parents:
        if not isinstance(node, ast.Compare) or not isinstance(node.left, ast.Name) or len(node.ops) != 1:
            continue
        value = node.comparators[0]
        if not isinstance(node.ops[0], (ast.Eq, ast.NotEq)) or not isinstance(value, ast.Constant):
            continue
        key = (file.references.scope_of(node.left).owner(node.left.id), node.left.id)
        values = _values(file, *key)
        if values is None or any(value.value == item for item in values):
            continue
        found.setdefault(key, {})[node] = isinstance(node.ops[0], ast.NotEq)
        chosen = next((item for item in file.module.ancestors(node) if isinstance(item, ast.stmt)), None)
        if isinstance(chosen, ast.If) and any(part in used for item in chosen.body for part in walk(item)):
            chooses.add(key)
    return {node: told for key in chooses for node, told in found[key].items()}


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
