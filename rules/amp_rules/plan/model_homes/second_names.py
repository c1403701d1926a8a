"""Variables that are second names for a model which runs, or is handed on, by another one."""

from __future__ import annotations

import ast

from amp_rules.plan.model_homes.variables import PLACING, HoldingVariable, is_function
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import arguments_of
from amp_rules.source.syntax import walk
from amp_rules.torch.models import OF_PRETRAINED, TELLS_OF_MODEL


def is_alias(program: Program, item: HoldingVariable, others: list[HoldingVariable]) -> bool:
    """Whether a variable is another name for a model that runs by its own: ``bare = model``, ``bare = model.module``.

    It is asked for parameters and weights alone, while the script may wrap what the other one holds.
    """
    paths = {other.path for other in others if other is not item and other.body is item.body}
    values = [getattr(statement, "value", None) for statement in item.assignments]
    is_beside = all(
        (blocks.path_of(value) or "").removesuffix(".module") in paths for value in values if value is not None
    )
    # An attribute is read by other methods, too.
    if not is_beside and ("." in item.path or not all(map(_names_another, item.assignments))):
        return False
    uses = [node for node in walk(item.body) if isinstance(node, (ast.Name, ast.Attribute)) and _is_read(node, item)]
    return all(_asks_of(item.module.parents[node]) or _is_asked_elsewhere(program, item, node) for node in uses)


def _is_asked_elsewhere(program: Program, item: HoldingVariable, node: ast.expr) -> bool:
    """Whether a function of the script is given the name, and asks it for parameters: ``get_params(bare, "head")``."""
    call = item.module.parents[node]
    call = item.module.parents[call] if isinstance(call, ast.keyword) else call
    if not isinstance(call, ast.Call) or call.func is node:
        return False
    infos = program.flow.callees(call)
    names = [(info, name) for info in infos for name in info.parameters if info.argument(call, name) is node]
    return len(names) == len(infos) > 0 and all(
        _asks_of(info.module.module.parents[part])
        for info, name in names
        for part in walk(info.node)
        if isinstance(part, ast.Name) and part.id == name
    )


def is_beside_parameter(item: HoldingVariable) -> bool:
    """Whether a variable is a second name for what a function is given and runs: ``inner = model.module``.

    What is made of the second name is not what the function trains.
    """
    if not is_function(item.body):
        return False
    values = [value for it in item.assignments if isinstance(value := getattr(it, "value", None), ast.expr)]
    named = {(blocks.path_of(value) or "").removesuffix(".module") for value in values}
    named &= {argument.arg for argument in arguments_of(item.body)} - {item.path}
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in named
        for node in walk(item.body)
    )


def is_handed_over(item: HoldingVariable, others: list[HoldingVariable]) -> bool:
    """Whether all that is read of a name gives another name its model: ``base = Net()``, then ``model = base``."""
    if not item.path.isidentifier():
        return False
    given = {
        id(statement.value)
        for other in others
        if other is not item and other.body is item.body and other.path.isidentifier()
        for statement in other.assignments
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1
    }
    uses = [node for node in walk(item.body) if isinstance(node, ast.Name) and _is_read(node, item)]
    return bool(uses) and all(id(node) in given for node in uses)


def _names_another(statement: ast.stmt) -> bool:
    """Whether a variable gets what another one holds: ``model``, ``model.module if is_wrapped else model``."""
    pending = [getattr(statement, "value", None)]
    while pending:
        value = pending.pop()
        if isinstance(value, ast.IfExp):
            pending += [value.body, value.orelse]
        elif not isinstance(value, (ast.Name, ast.Attribute)):
            return False
    return True


def _is_read(node: ast.Name | ast.Attribute, item: HoldingVariable) -> bool:
    return isinstance(node.ctx, ast.Load) and blocks.path_of(node) == item.path


def _asks_of(parent: ast.AST) -> bool:
    """Whether an attribute is asked for that runs no model."""
    return isinstance(parent, ast.Attribute) and parent.attr in {*TELLS_OF_MODEL, *PLACING, *OF_PRETRAINED}
