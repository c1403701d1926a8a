"""Variables that count elements of what a process has: what others have is no reason to go on, nor to stop."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope


def counts_elements(program: Program, scope: Scope, node: ast.expr) -> bool:
    """Whether the body around a variable takes parts of a sequence, or goes rounds, by it.

    ``while first < longest``, where ``x[:, first : first + 4]`` is a round: each process has other parts.
    """
    path = blocks.path_of(node)
    if path is None:
        return False
    inner = list(blocks.walk_body(blocks.body_of(scope.module, node)))
    counts = _worked_out_of(path, inner)
    return any(counts & blocks.reads(part) for other in inner for part in _whole_parts(program, scope, other))


def _worked_out_of(path: str, inner: list[ast.AST]) -> set[str]:
    """A variable and those that are worked out of it: ``rounds = found // size``."""
    found = {path}
    given = [item for item in inner if isinstance(item, ast.Assign) and isinstance(item.value, ast.BinOp)]
    while more := {
        name for item in given if found & blocks.reads(item.value) for name in blocks.writes(item) if name not in found
    }:
        found |= more
    return found


def _whole_parts(program: Program, scope: Scope, node: ast.AST) -> list[ast.expr]:
    """The expressions of a node that are whole numbers."""
    if isinstance(node, ast.Slice):
        return [part for part in (node.lower, node.upper, node.step) if part is not None]
    if isinstance(node, ast.Call) and "builtins.range" in program.callee_names(node, scope):
        return node.args
    return []
