"""Parameters that no call of a program gives: ``def train(model, writer=None):``."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none, last_name


def is_never_given(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a name is a parameter that is None in every call of its function, so that no method of it is called.

    All reads of the function's name are calls of it: nothing hands it on to what may call it otherwise.
    """
    if not isinstance(node, ast.Name):
        return False
    info = program.flow.functions.get(scope.owner(node.id).node)
    if info is None or info.cls is not None or not isinstance(info.node, ast.FunctionDef) or info.decorator_list:
        return False
    if not is_none(info.defaults.get(node.id)):
        return False
    if any(isinstance(part, ast.Name) and part.id == node.id and _is_stored(part) for part in info.nodes):
        return False
    callers = program.flow.callers(info)
    if not callers or not all(_leaves_out(info, item.call, node.id) for item in callers):
        return False
    named = sum(
        last_name(part) == info.name and not _is_stored(part)
        for module in program.flow.modules
        for part in module.nodes
        if isinstance(part, (ast.Name, ast.Attribute))
    )
    return named == len(callers)


def _leaves_out(info: FunctionFacts, call: ast.Call, name: str) -> bool:
    if any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords):
        return False
    given = info.argument(call, name)
    return given is None or is_none(given)


def _is_stored(node: ast.Name | ast.Attribute) -> bool:
    return not isinstance(node.ctx, ast.Load)
