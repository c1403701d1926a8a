"""Folders with a time in their names that all processes have from the main process: each may make them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Set

from amp_rules.roles.file_effects import FileEffect
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.program import Program
from amp_rules.source.index import keyword, literal
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.file_access import OF_THIS_MOMENT

_DEPTH = 6
"""Variables behind variables; a path that takes more is not followed to its end."""


def made_by_each(program: Program, paths: Paths, effects: Collection[FileEffect], told: Set[ast.AST]) -> set[ast.stmt]:
    """The statements that make such folders, and accept one that is there.

    Args:
        program: the program.
        paths: which files its expressions name.
        effects: what changes files.
        told: the calls that ask for the time, of which all processes have what the main process was told.
    """
    return {
        effect.statement
        for effect in effects
        if told and isinstance(effect.statement, ast.Expr) and effect.statement.value is effect.call
        if literal(keyword(effect.call, "exist_ok")) is True and len(effect.paths) == 1
        if _clocks(program, paths, effect.paths[0], effect.scope, _DEPTH) <= told
    }


def _clocks(program: Program, paths: Paths, path: ast.expr, scope: Scope, depth: int) -> set[ast.AST]:
    """The calls that ask for the time, for a path."""
    found: set[ast.AST] = set()
    for node in walk(path):
        if isinstance(node, ast.Call) and program.callee_names(node, scope) & OF_THIS_MOMENT:
            found.add(node)
        elif isinstance(node, (ast.Name, ast.Attribute)) and depth and isinstance(node.ctx, ast.Load):
            for value, where in paths.assigned(node, scope):
                found |= _clocks(program, paths, value, where, depth - 1)
    return found
