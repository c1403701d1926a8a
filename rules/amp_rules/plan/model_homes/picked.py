"""Models that are taken out of a container of them: by a loop, again and again, or behind the training."""

from __future__ import annotations

import ast

from amp_rules.flow.values import Value
from amp_rules.plan.model_homes.variables import HoldingVariable, exact_path, holds
from amp_rules.roles.program import Program
from amp_rules.source import blocks


def is_picked(program: Program, item: HoldingVariable) -> bool:
    """Whether a loop that trains takes an item of a container: ``net = nets[turn]``, ``a, b = nets[i], nets[j]``.

    Prepared there, a model would be wrapped anew in each round.
    """
    return bool(item.assignments) and all(
        _takes_item(given, item.path) and _is_repeated(program, item, given) for given in item.assignments
    )


def is_found_again(program: Program, item: HoldingVariable, candidates: list[HoldingVariable], value: Value) -> bool:
    """Whether an item of a container may be the model, and the function that makes the model trains it itself.

    ``frame = context[self.key]``: what the key stands for is not known, and other tasks put all they make there.
    """
    return any(_takes_item(given, item.path) for given in item.assignments) and any(
        other.body is not item.body and _is_made_and_trained(program, other, value) for other in candidates
    )


def _is_made_and_trained(program: Program, item: HoldingVariable, value: Value) -> bool:
    """Whether a variable gets the model from the call that makes it, above a statement of its function that trains."""
    for given in item.assignments:
        if value.site is not None and holds(given, value.site):
            place = blocks.place(item.module, given)
            if any(map(program.runs_backward, place.suite[place.index + 1 :])):
                return True
    return False


def _takes_item(statement: ast.stmt, path: str) -> bool:
    if isinstance(statement, ast.AnnAssign):
        return isinstance(statement.value, ast.Subscript) and exact_path(statement.target) == path
    return isinstance(statement, ast.Assign) and any(
        isinstance(value, ast.Subscript) and exact_path(target) == path
        for given in statement.targets
        for target, value in blocks.unpacked(given, statement.value)
    )


def _is_repeated(program: Program, item: HoldingVariable, statement: ast.stmt) -> bool:
    return any(
        isinstance(around, blocks.LOOPS) and program.runs_backward(around)
        for around in blocks.enclosing(item.module, statement)
    )
