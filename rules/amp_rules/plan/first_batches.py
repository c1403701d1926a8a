"""Loaders that a training loop makes anew in each round, to take one batch: few-shot tasks are drawn like that."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.roles.batches import TrainingData
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks


def first_batches(program: Program, data: TrainingData) -> Iterator[Site]:
    """Yield the expressions of loaders that are trained on whose first batch is all that a round takes.

    Such a loader often holds no more than that batch, whose size the step relies on.
    """
    trained = {value for use in data.uses for value in use.values}
    for call, body, scope in program.calls():
        loader = _of_first_batch(call)
        if not isinstance(loader, (ast.Name, ast.Attribute)):
            continue
        if trained.isdisjoint(program.flow.values(loader, scope)):
            continue
        path = blocks.path_of(loader)
        loop = blocks.loop_around(scope.module, call)
        if loop is None or not program.runs_backward(loop):
            continue
        if any(path in blocks.writes(item) for item in loop.body):
            yield Site(scope.module, scope, body, loader)


def _of_first_batch(call: ast.Call) -> ast.expr | None:
    """``loader`` of ``next(iter(loader))`` and of ``iter(loader).next()``."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("next", "__next__"):
        begun: ast.expr | None = call.func.value
    else:
        begun = call.args[0] if blocks.path_of(call.func) == "next" and call.args else None
    if not isinstance(begun, ast.Call):
        return None
    if isinstance(begun.func, ast.Attribute):
        return begun.func.value if begun.func.attr == "__iter__" else None
    return begun.args[0] if blocks.path_of(begun.func) == "iter" and len(begun.args) == 1 else None
