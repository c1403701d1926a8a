"""Losses of which only the gradient of an input is taken, as an attack does: no weight gets a gradient of them."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk


def trains_no_model(program: Program, node: ast.AST, scope: Scope) -> bool:
    """Whether what a statement computes is given to ``torch.autograd.grad`` alone, or moves nothing but an input.

    What reads it is looked for in the loop around it: an attack makes several steps.
    """
    statement = blocks.statement_of(scope.module, node)
    if not isinstance(statement, ast.Assign):
        return False
    around = blocks.loop_around(scope.module, statement)
    made = blocks.writes(statement)
    parts = around.body if isinstance(around, (ast.For, ast.While)) else blocks.own_parts(scope.node)
    reads = [
        item
        for part in parts
        for item in blocks.walk_own(part)
        if isinstance(item, ast.Name) and item.id in made and isinstance(item.ctx, ast.Load)
    ]
    return bool(reads) and all(
        _gives_gradient_alone(program, item, scope) or _moves_input(program, item, scope) for item in reads
    )


def _gives_gradient_alone(program: Program, name: ast.Name, scope: Scope) -> bool:
    """``torch.autograd.grad(loss, x)``, whose result carries no gradient itself."""
    call = scope.module.parents[name]
    if isinstance(call, ast.keyword):
        call = scope.module.parents[call]
    if not isinstance(call, ast.Call) or "torch.autograd.grad" not in program.callee_names(call, scope):
        return False
    return not any(item.arg in ("create_graph", None) for item in call.keywords)


def _moves_input(program: Program, name: ast.Name, scope: Scope) -> bool:
    """``loss.backward()`` where the step below it is of an optimizer that holds no model."""
    backward = next((site for site in program.backwards if name in set(walk(site.loss))), None)
    if backward is None:
        return False
    where = blocks.place(scope.module, backward.statement)
    inside = {node for item in where.suite[where.index :] for node in blocks.walk_own(item)}
    steps = [step for step in program.steps if step.node in inside]
    return bool(steps) and not any(program.models_of_step(step) for step in steps)
