"""Models that a function makes, prepares and trains, and gives back to be trained further: ``head = fit(encoder)``."""

from __future__ import annotations

import ast
from collections.abc import Collection

from amp_rules.flow.values import Value
from amp_rules.roles.program import Program
from amp_rules.source import blocks


def is_given_prepared(program: Program, housed: Collection[Value], bodies: Collection[ast.AST], value: Value) -> bool:
    """Whether a call gives a model that the function it runs has prepared, on each of its ways.

    Args:
        program: the program.
        housed: models that are prepared somewhere.
        bodies: the functions in which models are prepared.
        value: a model, told apart by the call that gives it.
    """
    callees = program.flow.callees(value.site) if isinstance(value.site, ast.Call) else set()
    return bool(callees) and all(
        info.node in bodies and all(_is_own(program, housed, given, info.node) for given in _returned(info.node))
        for info in callees
    )


def _returned(body: ast.AST) -> list[ast.expr | None]:
    return [node.value for node in blocks.walk_body(body) if isinstance(node, ast.Return)]


def _is_own(program: Program, housed: Collection[Value], given: ast.expr | None, body: ast.AST) -> bool:
    """Whether a variable of a function holds nothing but models that are made, and prepared, there."""
    scope = program.flow.scopes[body]
    if not isinstance(given, ast.Name) or scope.owner(given.id) is not scope:
        return False
    made = {node for node in blocks.walk_body(body) if isinstance(node, ast.Call)}
    values = program.flow.values(given, scope)
    return bool(values) and all(value in housed and value.site in made for value in values)
