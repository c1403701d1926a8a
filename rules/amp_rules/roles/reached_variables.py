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
    kinds = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.For)
    steps = [item for item in nodes if isinstance(item, kinds)]
    while True:
        # Flow through functions that change what they are given is not followed.
        added = {path for item in steps if _goes_into(reached, item) for path in _written(item)}
        if added <= reached:
            return reached
        reached |= added


def _written(statement: ast.stmt) -> set[str]:
    return blocks.writes_target(statement) if isinstance(statement, ast.For) else blocks.writes(statement)


def _goes_into(paths: set[str], statement: ast.stmt) -> bool:
    """Whether a statement writes what it makes of one of the variables."""
    source = statement.iter if isinstance(statement, ast.For) else getattr(statement, "value", None)
    return isinstance(source, ast.expr) and reads_any(paths, source)


def reads_any(paths: set[str], node: ast.AST) -> bool:
    """Whether a node reads one of the variables."""
    return blocks.touches(paths, blocks.reads(node))
