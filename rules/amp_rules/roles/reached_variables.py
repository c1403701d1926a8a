"""The variables that some statements make of others."""

from __future__ import annotations

import ast

from amp_rules.source import blocks


def reached_from(statement: ast.stmt, nodes: list[ast.AST]) -> set[str]:
    """The variables that a statement writes, and those that others write from them."""
    return reached_from_paths(blocks.writes(statement), nodes)


def reached_from_paths(paths: set[str], nodes: list[ast.AST]) -> set[str]:
    """Some variables, and those that statements write from them."""
    reached = set(paths)
    # Flow through functions that change what they are given is not followed.
    steps = [(blocks.reads(source), item) for item in nodes if (source := _source(item)) is not None]
    while True:
        added = {path for read, item in steps if blocks.touches(reached, read) for path in _written(item)}
        if added <= reached:
            return reached
        reached |= added


def _written(statement: ast.AST) -> set[str]:
    return blocks.writes_target(statement) if isinstance(statement, ast.For) else blocks.writes(statement)


def _source(node: ast.AST) -> ast.expr | None:
    """What a statement makes something of that it writes."""
    if isinstance(node, ast.For):
        return node.iter
    return node.value if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)) else None


def reads_any(paths: set[str], node: ast.AST) -> bool:
    """Whether a node reads one of the variables."""
    return blocks.touches(paths, blocks.reads(node))
