"""What ``**options`` of a call hold, where the file shows all of it."""

from __future__ import annotations

import ast

from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import last_name


def packed_names(mapping: ast.expr, scope: Scope) -> frozenset[str] | None:
    """The keywords that ``**mapping`` may give; None where something else may be among them.

    Args:
        mapping: the expression behind the stars.
        scope: where it is read.
    """
    if not isinstance(mapping, ast.Name):
        return _keys(mapping)
    owner = scope.owner(mapping.id)
    module = scope.module
    if isinstance(owner.node, FunctionNode) and mapping.id in {item.arg for item in arguments_of(owner.node)}:
        return None
    found: set[str] = set()
    is_made = False
    for node in module.nodes:
        if not (isinstance(node, ast.Name) and node.id == mapping.id) or not _is_of(node, scope, owner):
            continue
        keys = _given_by(module.parents[node], node, module.parents)
        if keys is None:
            return None
        is_made = is_made or not isinstance(node.ctx, ast.Load)
        found |= keys
    return frozenset(found) if is_made else None


def packed_value(call: ast.Call, key: str, scope: Scope) -> ast.expr | None:
    """What ``**options`` of a call hold under a keyword, where the file writes it once; None where it is not known."""
    for item in call.keywords:
        mapping = item.value if item.arg is None else None
        if not isinstance(mapping, ast.Name) or key not in (packed_names(mapping, scope) or ()):
            continue
        owner, parents = scope.owner(mapping.id), scope.module.parents
        found: list[ast.expr] = []
        for node in scope.module.nodes:
            if isinstance(node, ast.Name) and node.id == mapping.id and _is_of(node, scope, owner):
                parent = parents[node]
                if isinstance(parent, ast.Subscript) and literal(parent.slice) == key:
                    statement = parents[parent]
                    found += [statement.value] if isinstance(statement, ast.Assign) else []
                elif isinstance(parent, ast.Assign):
                    found += _values(parent.value, key)
                elif isinstance(parent, ast.Attribute) and isinstance(parents[parent], ast.Call):
                    found += [value for given in parents[parent].args for value in _values(given, key)]  # type: ignore[attr-defined]
        if len(found) == 1:
            return found[0]
    return None


def _values(node: ast.expr, key: str) -> list[ast.expr]:
    """What a mapping that is written out has under a key."""
    if isinstance(node, ast.Dict):
        return [value for name, value in zip(node.keys, node.values, strict=True) if literal(name) == key]
    return [item.value for item in node.keywords if item.arg == key] if isinstance(node, ast.Call) else []


def _is_of(node: ast.Name, scope: Scope, owner: Scope) -> bool:
    """Whether a name is the variable that an owner binds, for all that its place says."""
    body = blocks.body_of(scope.module, node)
    return body is owner.node or not isinstance(owner.node, FunctionNode)


def _given_by(parent: ast.AST, node: ast.Name, parents: dict[ast.AST, ast.AST]) -> frozenset[str] | None:
    """What a place puts into a mapping; None where it may do something else with it."""
    if isinstance(parent, ast.Assign) and parent.targets == [node]:
        return _keys(parent.value)
    if isinstance(parent, ast.keyword) and parent.arg is None:
        return frozenset()
    if isinstance(parent, ast.Subscript) and parent.value is node:
        key = literal(parent.slice)
        return frozenset({key}) if isinstance(key, str) else None
    if isinstance(parent, ast.Attribute) and parent.attr == "update":
        call = parents[parent]
        if isinstance(call, ast.Call) and call.func is parent and isinstance(parents[call], ast.Expr):
            return _keys(ast.Call(ast.Name("dict", ast.Load()), call.args, call.keywords))
    return None


def _keys(node: ast.expr) -> frozenset[str] | None:
    """The keys of a mapping that is written out."""
    if isinstance(node, ast.IfExp):
        either = [_keys(node.body), _keys(node.orelse)]
        return None if None in either else frozenset().union(*(item for item in either if item is not None))
    if isinstance(node, ast.Dict):
        keys = [literal(key) if key is not None else None for key in node.keys]
        return frozenset(map(str, keys)) if all(isinstance(key, str) for key in keys) else None
    if isinstance(node, ast.Call) and last_name(node.func) == "dict":
        inner = [_keys(item) for item in node.args]
        if None in inner or any(item.arg is None for item in node.keywords):
            return None
        names = frozenset(item.arg for item in node.keywords if item.arg is not None)
        return names.union(*(item for item in inner if item is not None))
    return None
