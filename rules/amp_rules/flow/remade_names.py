"""Variables whose class is made an object of right below: ``loss = losses[name]``, then ``loss = loss(size)``."""

from __future__ import annotations

import ast

from amp_rules.flow.local_variables import LocalVariables
from amp_rules.flow.values import Value
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope


def without_remade(targets: set[Value], call: ast.Call, scope: Scope, variables: LocalVariables) -> set[Value]:
    """What a call may run, without the classes that its variable has held only until objects of them were made.

    Variables hold their values regardless of the order of statements: ``loss(output, y)`` below made a second object,
    whose constructor was given them.
    """
    classes = {value for value in targets if value.kind == "class"}
    made = {value.ref for value in targets if value.kind == "instance"}
    if not classes or not {value.ref for value in classes} <= made or not isinstance(call.func, ast.Name):
        return targets
    return targets - classes if _is_remade(call, call.func.id, scope, variables) else targets


def _is_remade(call: ast.Call, name: str, scope: Scope, variables: LocalVariables) -> bool:
    """Whether all that a variable is assigned is called below, in the same suite, to give it an object; not here."""
    if not scope.is_function or scope.owner(name) is not scope:
        return False
    module = scope.module
    given = variables[scope.node].get(name, [])
    remakes = [value for value in given if _calls(value, name)]
    firsts = [value for value in given if value not in remakes]
    if not firsts or call in remakes:
        return False
    ends = {blocks.statement_of(module, value) for value in remakes}
    around = {blocks.statement_of(module, call), *blocks.enclosing(module, call)}
    for value in firsts:
        where = blocks.place(module, blocks.statement_of(module, value))
        below = where.suite[where.index + 1 :]
        until = next((index for index, item in enumerate(below) if item in ends), None)
        if until is None or around.intersection(below[: until + 1]):
            return False
    return True


def _calls(value: ast.expr, name: str) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == name
