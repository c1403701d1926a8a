"""When the expressions of a statement are evaluated: what may be made above it instead."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk


def is_first(statement: ast.stmt, node: ast.expr) -> bool:
    """Whether nothing but names is evaluated before a part of a statement: what it makes may be made above."""
    for item in _evaluated(statement):
        if item is node:
            return True
        if isinstance(item, ast.Call) and node not in set(walk(item)):
            return False
    return False


def _evaluated(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement's own, in the order of the text."""
    heads = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr)]
    for head in heads:
        yield from walk(head)


def runs_once_in(module: Module, node: ast.expr, statement: ast.stmt) -> bool:
    """Whether an expression is evaluated exactly once when its statement is run."""
    child: ast.AST = node
    for parent in module.ancestors(node):
        if parent is statement:
            break
        if isinstance(parent, (ast.Lambda, ast.IfExp, ast.BoolOp, ast.comprehension)):
            return False
        if isinstance(parent, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            return False
        child = parent
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return child is statement.iter
    return isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr))


def is_within(module: Module, node: ast.AST, suite: tuple[ast.stmt, ...]) -> bool:
    """Whether a node stands in one of these statements."""
    return any(parent in suite for parent in [blocks.statement_of(module, node), *module.ancestors(node)])
