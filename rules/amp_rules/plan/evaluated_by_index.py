"""Evaluations that no loader feeds: by index, ``for i in range(len(test_set))``, or by the script's own batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import own_name, walk

_SIZES = frozenset({"shape", "size"})


def evaluated_by_index(program: Program) -> Iterator[Site]:
    """Yield what loops go over that run a trained model without gradients on data that they take themselves.

    Args:
        program: the program.
    """
    for node, body, scope in program.nodes():
        if not isinstance(node, ast.For) or program.is_model_code(body):
            continue
        if (_takes_by_index(node) or _takes_own_batches(program, node)) and _only_looks(program, node, scope):
            yield Site(scope.module, scope, body, node.iter)


def _only_looks(program: Program, loop: ast.For, scope: Scope) -> bool:
    """Whether a loop calls a trained model, each time without gradients, and nothing in it trains."""
    if program.runs_backward(loop) or program.runs_step(loop):
        return False
    calls = [node for node in blocks.walk_own(loop) if isinstance(node, ast.Call) and program.forwards(node, scope)]
    return bool(calls) and all(map(program.is_without_gradients, calls))


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


def _takes_own_batches(program: Program, loop: ast.For) -> bool:
    """Whether a loop takes what a generator of the project yields, which runs no model itself."""
    call = loop.iter
    called = program.flow.callees(call) if isinstance(call, ast.Call) else []
    return bool(called) and all(info.is_generator and not program.runs_model(info.node) for info in called)
