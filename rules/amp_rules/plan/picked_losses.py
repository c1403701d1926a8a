"""Losses of single samples that a script sorts, to train on the largest or the smallest of them.

``each = cross_entropy(scores, y, reduction="none")``, and ``each.topk(k)``: hard examples, or those that are taken for
labelled rightly. Which they are depends on what else is in the batch.
"""

from __future__ import annotations

import ast

from amp_rules.plan.definitions import Definitions
from amp_rules.roles.program import Program
from amp_rules.source.index import literal
from amp_rules.source.scopes import Scope

_AXES = {"topk": 1, "sort": 0, "argsort": 0, "kthvalue": 1, "quantile": 1, "median": 0}
"""Methods that order the numbers of a tensor, with the place of the axis among their arguments."""

_FUNCTIONS = frozenset(f"{library}.{name}" for library in ("torch", "numpy") for name in _AXES)
"""The same as functions."""

_KEPT = frozenset({"clone", "contiguous", "cpu", "cuda", "data", "detach", "flatten", "float", "numpy", "squeeze"})
"""Methods and attributes whose result has the same numbers, one for each sample or place."""

_OVER_OTHER_AXES = frozenset({"mean", "sum"})
_FIRST = ("0", "-1")
"""The axes that a vector of losses has."""

_MAX_VARIABLES = 3
"""Variables between a loss and its order; scripts have one or two."""


def picks_losses(program: Program, definitions: Definitions, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression puts the losses of the samples of a batch in order."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in _AXES:
        return False
    is_function = bool(program.callee_names(node, scope) & _FUNCTIONS)
    if is_function and not node.args:
        return False
    ordered, given = (node.args[0], node.args[1:]) if is_function else (node.func.value, node.args)
    place = _AXES[node.func.attr]
    axes = [item.value for item in node.keywords if item.arg in ("dim", "axis")] + given[place : place + 1]
    if any(ast.unparse(axis) not in _FIRST for axis in axes):
        return False
    return _is_of_samples(program, definitions, ordered, scope, _MAX_VARIABLES)


def _is_of_samples(program: Program, definitions: Definitions, node: ast.expr, scope: Scope, depth: int) -> bool:
    """Whether an expression is a vector of the losses of samples."""
    if isinstance(node, ast.Name):
        given = definitions.of(node, scope) if depth else []
        return any(
            item.whole and _is_of_samples(program, definitions, item.value, item.scope, depth - 1) for item in given
        )
    if isinstance(node, ast.Attribute):
        return node.attr in _KEPT and _is_of_samples(program, definitions, node.value, scope, depth)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        name = node.func.attr
        is_vector = name in ("view", "reshape") and [ast.unparse(item) for item in node.args] == ["-1"]
        # ``each.mean(1)`` leaves one number for each sample, and ``each.mean()`` one for all.
        is_left = name in _OVER_OTHER_AXES and bool(node.args or node.keywords)
        if name in _KEPT or is_vector or is_left:
            return _is_of_samples(program, definitions, node.func.value, scope, depth)
    made = (value.site for value in program.flow.values(node.func, scope))
    return _is_unreduced(node) or any(isinstance(call, ast.Call) and _is_unreduced(call) for call in made)


def _is_unreduced(call: ast.Call) -> bool:
    """``cross_entropy(scores, y, reduction="none")``, ``CrossEntropyLoss(reduce=False)``."""
    given = {item.arg: literal(item.value) for item in call.keywords}
    return given.get("reduction") == "none" or given.get("reduce") is False
