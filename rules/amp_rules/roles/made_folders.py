"""Which folder a call makes where there is none yet."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.source.scopes import Scope
from amp_rules.torch.file_access import MAKES_FOLDERS
from amp_rules.torch.writers import FOLDERS_OF_WRITERS, WRITERS, WRITERS_WITHOUT_FOLDER


def folder_made(program: Program, call: ast.Call, scope: Scope) -> ast.expr | None:
    """The path of the folder that a call makes, with those that it is in; None where it makes none that is named."""
    names = program.callee_names(call, scope)
    if names & MAKES_FOLDERS:
        return call.args[0] if call.args else _by_name(call, {"name", "path"})
    if names & (WRITERS - WRITERS_WITHOUT_FOLDER):
        return call.args[0] if call.args else _by_name(call, FOLDERS_OF_WRITERS)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir" and not names:
        return None if program.flow.callees(call) else call.func.value
    return None


def _by_name(call: ast.Call, names: frozenset[str] | set[str]) -> ast.expr | None:
    return next((item.value for item in call.keywords if item.arg in names), None)
