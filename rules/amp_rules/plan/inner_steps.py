"""Steps within a step, as meta-learning takes them for each task: weights that are moved along gradients of one loss.

Batch norm over the batches of all processes would mix the tasks of the others into such a gradient.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.roles import batch_norm
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import called_name, walk
from amp_rules.torch.gradients import GRADIENT_FUNCTIONS

_WEIGHTS = frozenset({"parameters", "named_parameters"})
_PAIRS = frozenset({"zip", "enumerate", "list", "items", "values"})
_DEEPEST = 2
"""Through how many calls gradients are followed to where they move weights."""


def mixes_tasks(program: Program) -> bool:
    """Whether gradients of weights move them within a step, in a program with batch norm."""
    sites = [site for site in program.calls_to(GRADIENT_FUNCTIONS) if isinstance(site.node, ast.Call)]
    return any(_moves_weights(program, site.node, site.scope, site.body) for site in sites) and any(
        batch_norm.names_batch_norm(module.nodes) for module in program.flow.modules
    )


def _moves_weights(program: Program, call: ast.AST, scope: Scope, body: ast.AST) -> bool:
    assert isinstance(call, ast.Call)
    inputs = [*call.args[1:2], *(item.value for item in call.keywords if item.arg == "inputs")]
    if not any(_are_weights(program, item, body) for item in inputs):
        return False
    statement = blocks.statement_of(scope.module, call)
    names = blocks.writes(statement) if isinstance(statement, ast.Assign) else set()
    return bool(names) and _is_step(program, body, names, _DEEPEST)


def _are_weights(program: Program, node: ast.expr, body: ast.AST) -> bool:
    """``model.parameters()``, or a variable of the function that was made of it."""
    read = blocks.reads(node)
    made = [
        item.value for item in program.nodes_of(body) if isinstance(item, ast.Assign) and blocks.writes(item) & read
    ]
    return any(
        isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in _WEIGHTS
        for value in [node, *made]
        for part in walk(value)
    )


def _is_step(program: Program, body: ast.AST, names: set[str], depth: int) -> bool:
    """Whether gradients of these names, or single ones out of them, are subtracted with a factor."""
    nodes = list(program.nodes_of(body))
    before: set[str] = set()
    while names != before:
        before = names
        names = names.union(*(_taken_out(node, names) for node in nodes))
    if any(_subtracts(node, names) for node in nodes):
        return True
    return depth > 0 and any(
        _is_step(program, inner, {name}, depth - 1) for node in nodes for inner, name in _given(program, node, names)
    )


def _taken_out(node: ast.AST, names: set[str]) -> set[str]:
    """``for w, g in zip(weights, gradients)``, and ``found.append(g)``."""
    if isinstance(node, (ast.For, ast.comprehension)) and _pairs(node.iter, names):
        return {part.id for part in walk(node.target) if isinstance(part, ast.Name)}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
        path = blocks.path_of(node.func.value)
        if path is not None and any(blocks.path_of(item) in names for item in node.args):
            return {path}
    if isinstance(node, ast.Assign) and _pairs(node.value, names):
        return blocks.writes(node)
    return set()


def _pairs(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return called_name(node) in _PAIRS and any(_pairs(item, names) for item in node.args)
    if isinstance(node, ast.Subscript):
        return _pairs(node.value, names)
    return blocks.path_of(node) in names


def _subtracts(node: ast.AST, names: set[str]) -> bool:
    """``w - rate * g``, ``-rate * g``."""
    if not isinstance(node, ast.BinOp):
        return False
    if isinstance(node.op, ast.Sub):
        return isinstance(node.right, ast.BinOp) and _multiplies(node.right, names)
    return _multiplies(node, names) and isinstance(node.left, ast.UnaryOp) and isinstance(node.left.op, ast.USub)


def _multiplies(node: ast.BinOp, names: set[str]) -> bool:
    return isinstance(node.op, ast.Mult) and any(_pairs(item, names) for item in (node.left, node.right))


def _given(program: Program, node: ast.AST, names: set[str]) -> Iterator[tuple[ast.AST, str]]:
    """The parameters of the project's functions that are given gradients."""
    if not isinstance(node, ast.Call):
        return
    for info in program.flow.callees(node):
        for name, argument in info.bound(node):
            if name is not None and blocks.path_of(argument) in names:
                yield info.node, name
