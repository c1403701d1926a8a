"""Steps beside the training that stay in full precision: what is said of them, and whether all ranks do the same."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.notes import IN_FULL_PRECISION, note
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward
from amp_rules.source import blocks
from amp_rules.source.syntax import walk


def reasons(distribution: Distribution) -> Iterator[Declined]:
    """Yield those that would train another model in each process: nothing averages their gradients."""
    for one in distribution.program.apart:
        step = one.step
        for backward in one.backwards:
            local = next(
                (name for name, node in _taken(distribution, backward) if distribution.ranks.origins(node)), None
            )
            if local is not None:
                yield declining.decline(
                    declining.GRADIENTS_OUTSIDE,
                    step.module,
                    step.node,
                    f"`{step.module.text(step.call)}` trains its own model on `{local}`, which differs between "
                    "processes, and nothing averages its gradients",
                    "give it the same data in each process, from a loader that is not shared out",
                )
                break


def _taken(distribution: Distribution, backward: Backward) -> Iterator[tuple[str, ast.expr]]:
    """The variables of others that a closure reads, each with what they are given."""
    program = distribution.program
    read = {
        (node.id, backward.scope.owner(node.id))
        for node in walk(backward.body)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    for name, owner in sorted(read - {(name, backward.scope) for name, _ in read}, key=lambda item: item[0]):
        info = program.function_of(owner.node)
        if info is not None and name in info.parameters:
            for caller in program.flow.callers(info):
                given = info.argument(caller.call, name)
                if given is not None:
                    yield name, given
        for node in blocks.walk_body(owner.node):
            value = node.iter if isinstance(node, ast.For) else getattr(node, "value", None)
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if target is not None and isinstance(value, ast.expr):
                    paths = {blocks.path_of(item) for item in walk(target) if isinstance(item, ast.Name)}
                    if name in paths:
                        yield name, value


def notes(program: Program) -> Iterator[Note]:
    """Yield what stays as it is."""
    for one in program.apart:
        step = one.step
        why = "it evaluates a closure, and no other step trains its model"
        if one.closures:
            why = "it evaluates a closure whose gradients `torch.autograd.grad` gives, which nothing scales"
        text = f"`{step.module.text(step.call)}` stays as it is, in full precision: {why}"
        yield note(IN_FULL_PRECISION, step.module, step.node, text)
