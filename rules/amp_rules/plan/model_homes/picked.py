"""Models that a loop picks out of a list of them, again and again."""

from __future__ import annotations

import ast

from amp_rules.plan.model_homes.variables import HoldingVariable, exact_path
from amp_rules.roles.program import Program
from amp_rules.source import blocks


def is_picked(program: Program, item: HoldingVariable) -> bool:
    """Whether a loop that trains takes an item of a container: ``net = nets[turn]``, ``a, b = nets[i], nets[j]``.

    Prepared there, a model would be wrapped anew in each round.
    """
    return bool(item.assignments) and all(
        _takes_item(given, item.path) and _is_repeated(program, item, given) for given in item.assignments
    )


def _takes_item(statement: ast.stmt, path: str) -> bool:
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
