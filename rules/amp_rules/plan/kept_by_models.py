"""Numbers of a batch that a forward pass keeps in its model, and that a training loop shows: ``model.losses["x"]``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.kept_numbers import loops_of_batches
from amp_rules.plan.rank_numbers import OF_ONE_BATCH, Told, of_the_share
from amp_rules.plan.training_loops import TrainingLoop
from amp_rules.plan.ways_to_show import is_shown
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks


def kept_by_models(processes: Distribution, told: Iterable[Told]) -> Iterator[Told]:
    """Yield what loops show of what their models keep of a batch, where nothing is told of a loop already."""
    program = processes.program
    beside = {item for one in told for item in blocks.enclosing(one.site.module, one.site.statement)}
    for loop in loops_of_batches(processes):
        kept = _kept(program, loop) if loop.loop not in beside else frozenset()
        named: set[str] = set()
        for node in [*of_the_share(processes, loop), *_next_to(program, loop)] if kept else ():
            if not (isinstance(node, ast.Attribute) and node.attr in kept and isinstance(node.ctx, ast.Load)):
                continue
            name = ast.unparse(node)
            if name not in named and program.roles.modules(node.value, loop.scope) and is_shown(loop, node):
                named.add(name)
                yield Told(Site(loop.module, loop.scope, loop.body, node), name, *OF_ONE_BATCH)


def _next_to(program: Program, loop: TrainingLoop | BatchLoop) -> Iterator[ast.AST]:
    """The nodes that run below a loop, before a model runs again: a step may be taken of several batches."""
    where = blocks.place(loop.module, loop.loop)
    for statement in where.suite[where.index + 1 :]:
        if program.runs_model(statement):
            return
        yield from blocks.walk_own(statement)


def _kept(program: Program, loop: TrainingLoop | BatchLoop) -> frozenset[str]:
    """The attributes in which the forward passes of a loop keep what they compute."""
    asked = [node for node in loop.inner if isinstance(node, ast.Call) and program.called_models(node, loop.scope)]
    return frozenset(
        name
        for body in (program.called_from(asked) if asked else ())
        if program.is_model_code(body)
        for node in program.nodes_of(body)
        if (name := _attribute(program, node, body)) is not None
    )


def _attribute(program: Program, node: ast.AST, body: ast.AST) -> str | None:
    """``losses`` of ``self.losses["near"] = near.item()``: it gets what the function has computed."""
    if not isinstance(node, (ast.Assign, ast.AugAssign)):
        return None
    target: ast.expr = node.targets[0] if isinstance(node, ast.Assign) else node.target
    while isinstance(target, ast.Subscript):
        target = target.value
    if not (isinstance(target, ast.Attribute) and blocks.path_of(target.value) == "self"):
        return None
    scope = program.flow.scopes[body]
    names = {path.partition(".")[0] for path in blocks.reads(node.value)} - {"self"}
    return target.attr if any(scope.owner(name).node is body for name in names) else None
