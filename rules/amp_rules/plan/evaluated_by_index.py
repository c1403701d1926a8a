"""Evaluations that no loader feeds: by index, ``for i in range(len(test_set))``, or by the script's own batches.

Those may be yielded by a generator, or gathered out of a list of paths that a loop goes over.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from amp_rules.plan.evaluation.modes import is_evaluating
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import own_name, walk
from amp_rules.torch.wrappers import PROGRESS_BARS

_SIZES = frozenset({"shape", "size"})
_SHOWS = PROGRESS_BARS | {"builtins.enumerate"}
_JOINS = frozenset({"append", "cat", "concatenate", "hstack", "stack", "vstack"})


def evaluated_by_index(program: Program) -> Iterator[Site]:
    """Yield what loops go over that run a trained model without gradients on data that they take themselves.

    Args:
        program: the program.
    """
    for node, body, scope in program.nodes():
        if not isinstance(node, ast.For) or program.is_model_code(body) or not _runs_trained(program, node, scope):
            continue
        site, data = Site(scope.module, scope, body, node), _gone_over(program, node.iter, scope)
        without_gradients = all(map(program.is_without_gradients, _forwards(program, node, scope)))
        takes = without_gradients and (_takes_by_index(node) or _takes_own_batches(program, data))
        if takes or (_gathers(node, data) and (without_gradients or is_evaluating(program, site, set()))):
            yield replace(site, node=data)


def _runs_trained(program: Program, loop: ast.For, scope: Scope) -> bool:
    """Whether a loop calls a trained model, and nothing in it trains."""
    if program.runs_backward(loop) or program.runs_step(loop):
        return False
    return bool(_forwards(program, loop, scope))


def _forwards(program: Program, loop: ast.For, scope: Scope) -> list[ast.Call]:
    """The calls in a loop, not in functions that it calls, that run a trained model."""
    return [node for node in blocks.walk_own(loop) if isinstance(node, ast.Call) and program.forwards(node, scope)]


def _gone_over(program: Program, node: ast.expr, scope: Scope) -> ast.expr:
    """What a loop goes over, without ``enumerate`` and a progress bar."""
    while isinstance(node, ast.Call) and node.args and program.callee_names(node, scope) & _SHOWS:
        node = node.args[0]
    return node


def _gathers(loop: ast.For, data: ast.expr) -> bool:
    """Whether a loop over a variable joins what it makes of each item to a batch: ``batch = np.concatenate(...)``."""
    if not isinstance(data, (ast.Name, ast.Attribute)):
        return False
    joined = [
        node
        for item in loop.body
        for node in blocks.walk_own(item)
        if isinstance(node, ast.Assign)
        and any(isinstance(part, ast.Call) and own_name(part.func) in _JOINS for part in walk(node.value))
        and blocks.writes(node) & blocks.reads(node.value)
    ]
    return bool(joined) and not blocks.writes_target(loop).isdisjoint(
        path for item in loop.body for path in blocks.reads(item)
    )


def _takes_by_index(loop: ast.For) -> bool:
    """Whether a loop counts up to the length of what it takes a part of by the count: ``x[i : i + 16]``."""
    if not isinstance(loop.target, ast.Name):
        return False
    counts = [node for node in walk(loop.iter) if isinstance(node, ast.Call) and own_name(node.func) == "range"]
    measured = {path for call in counts for item in call.args for path in _measured(item)}
    return any(
        isinstance(node, ast.Subscript)
        and loop.target.id in blocks.reads(node.slice)
        and blocks.path_of(node.value) in measured
        for node in walk(loop)
    )


def _measured(node: ast.AST) -> Iterator[str]:
    """What an expression takes the length of: ``len(x)``, ``x.shape[0]``, ``x.size(0)``."""
    for item in walk(node):
        held: ast.AST | None = None
        if isinstance(item, ast.Call) and own_name(item.func) == "len" and item.args:
            held = item.args[0]
        elif isinstance(item, ast.Attribute) and item.attr in _SIZES:
            held = item.value
        path = blocks.path_of(held) if held is not None else None
        if path is not None:
            yield path


def _takes_own_batches(program: Program, call: ast.expr) -> bool:
    """Whether a loop takes what a generator of the project yields, which runs no model itself."""
    called = program.flow.callees(call) if isinstance(call, ast.Call) else []
    return bool(called) and all(info.is_generator and not program.runs_model(info.node) for info in called)
