"""Which variables are bound for certain where a place is reached."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import last_name, walk


def is_bound_at(module: Module, scope: Scope, name: str, node: ast.AST) -> bool:
    """Whether a variable can be read at a place."""
    owner = scope.owner(name)
    return name in owner.bound and is_bound(owner, name, module, node)


def is_bound(owner: Scope, name: str, module: Module, node: ast.AST) -> bool:
    """Whether a variable is bound for certain when a place is reached."""
    if isinstance(owner.node, FunctionNode) and name in {item.arg for item in arguments_of(owner.node)}:
        return True
    statement = blocks.statement_of(module, node)
    if any(_gives_around(item, statement, name, module) for item in blocks.enclosing(module, statement)):
        return True
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


def _gives_around(item: ast.AST, statement: ast.stmt, name: str, module: Module) -> bool:
    """Whether a loop or a block around a place gives a variable its value: ``for x, y in loader:``."""
    if isinstance(item, (ast.For, ast.AsyncFor)):
        return name in blocks.writes_target(item) and _is_in(statement, item.body, module)
    return isinstance(item, (ast.With, ast.AsyncWith)) and any(
        isinstance(part, ast.Name) and part.id == name
        for given in item.items
        if given.optional_vars is not None
        for part in walk(given.optional_vars)
    )


def _is_in(statement: ast.stmt, suite: list[ast.stmt], module: Module) -> bool:
    return statement in suite or any(parent in suite for parent in module.ancestors(statement))


def _own_suite(body: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a body, those of the entry's guard too."""
    for item in getattr(body, "body", ()):
        yield item
        if isinstance(item, ast.If) and isinstance(item.test, ast.Compare) and last_name(item.test.left) == "__name__":
            yield from item.body
