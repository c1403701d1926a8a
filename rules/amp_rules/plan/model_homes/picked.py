"""Models that are taken out of a container of them: by a loop, again and again, or behind the training."""

from __future__ import annotations

import ast

from amp_rules.flow.values import Value
from amp_rules.plan.model_homes.variables import HoldingVariable, exact_path, holds
from amp_rules.roles.program import Program
from amp_rules.source import blocks


def is_picked(program: Program, item: HoldingVariable) -> bool:
    """Whether a loop that trains takes an item of a container: ``net = nets[turn]``, ``a, b = nets[i], nets[j]``.

    Or asks a function for it: ``net, optimizer = get(task)``, which ends in ``return nets[task], optimizers[task]``.

    Prepared there, a model would be wrapped anew in each round.
    """
    return bool(item.assignments) and all(
        (_takes_item(given, item.path) or _asks_for_item(program, item, given)) and _is_repeated(program, item, given)
        for given in item.assignments
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


def _asks_for_item(program: Program, item: HoldingVariable, statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return False
    target = statement.targets[0]
    names = [*map(exact_path, target.elts)] if isinstance(target, (ast.Tuple, ast.List)) else None
    if names is not None and item.path not in names:
        return False
    given = [returned for info in program.flow.callees(statement.value) for returned in info.returns]
    if names is not None:
        place = names.index(item.path)
        given = [
            returned.elts[place] if isinstance(returned, ast.Tuple) and len(returned.elts) == len(names) else returned
            for returned in given
        ]
    return bool(given) and all(isinstance(returned, ast.Subscript) for returned in given)


def _is_repeated(program: Program, item: HoldingVariable, statement: ast.stmt) -> bool:
    return any(
        isinstance(around, blocks.LOOPS) and program.runs_backward(around)
        for around in blocks.enclosing(item.module, statement)
    )
