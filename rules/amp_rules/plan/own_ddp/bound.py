"""Which variables are bound for certain where a place is reached."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import last_name


def is_bound_at(module: Module, scope: Scope, name: str, node: ast.AST) -> bool:
    """Whether a variable can be read at a place."""
    owner = scope.owner(name)
    return name in owner.bound and is_bound(owner, name, module, node)


def is_bound(owner: Scope, name: str, module: Module, node: ast.AST) -> bool:
    """Whether a variable is bound for certain when a place is reached."""
    if isinstance(owner.node, FunctionNode) and name in {item.arg for item in arguments_of(owner.node)}:
        return True
    statement = blocks.statement_of(module, node)
    inside = blocks.body_of(module, statement) is owner.node
    for above in blocks.statements_above(module, statement, owner.node) if inside else _own_suite(owner.node):
        if isinstance(above, (ast.Import, ast.ImportFrom)):
            if any((item.asname or item.name.partition(".")[0]) == name for item in above.names):
                return True
        elif isinstance(above, (ast.FunctionDef, ast.ClassDef)):
            if above.name == name:
                return True
        elif isinstance(above, ast.Global):
            continue
        elif name in blocks.certainly_bound(above):
            return True
    return False


def _own_suite(body: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a body, those of the entry's guard too."""
    for item in getattr(body, "body", ()):
        yield item
        if isinstance(item, ast.If) and isinstance(item.test, ast.Compare) and last_name(item.test.left) == "__name__":
            yield from item.body
