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
