"""Calls of functions in which the processes wait before they come to any file: nothing has to wait above them too."""

from __future__ import annotations

import ast
from collections.abc import Collection

from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)


def waits_within(
    program: Program, module: Module, statement: ast.stmt, waits: Collection[ast.stmt], files: Collection[ast.AST]
) -> bool:
    """Whether a statement only calls a function that begins with a wait, for all that has to do with files.

    Args:
        program: the program.
        module: the file of the statement.
        statement: the statement.
        waits: the statements above which the processes wait.
        files: the calls that read or change files.
    """
    if not isinstance(statement, _SIMPLE):
        return False
    calls = [node for node in blocks.walk_own(statement) if isinstance(node, ast.Call)]
    if any(isinstance(node, (ast.IfExp, ast.BoolOp, ast.comprehension)) for node in walk(statement)):
        return False  # the call may not be made
    running = [call for call in calls if program.flow.callees(call)]
    if len(running) != 1 or any(call in files for call in calls):
        return False
    (callees,) = (program.flow.callees(call) for call in running)
    if len(callees) != 1:
        return False
    (info,) = callees
    if info.is_generator or isinstance(info.node, (ast.Lambda, ast.AsyncFunctionDef)):
        return False
    for item in info.body:
        if item in waits:
            return True
        inner = [node for node in walk(item) if isinstance(node, ast.Call)]
        if not isinstance(item, _SIMPLE) or any(call in files or program.flow.callees(call) for call in inner):
            return False
    return False
