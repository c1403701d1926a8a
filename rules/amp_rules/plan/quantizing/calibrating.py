"""With what a model is calibrated: the loader of its training, where a place can reach it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.flow.values import Value
from amp_rules.plan.quantizing.inputs import BATCH, NoInput, input_of
from amp_rules.plan.quantizing.known_names import KnownNames
from amp_rules.plan.quantizing.why_not import NotQuantized
from amp_rules.plan.training_loops import TrainingLoop
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module

_MAX_CALLERS = 4
"""Functions through which a loader is handed to its loop; trainers have two."""


@dataclass(frozen=True)
class Spot:
    """Where the loader is needed.

    Attributes:
        module: the file.
        body: the function, or the file itself.
        known: what has a value there.
        told: the place, for the reader, as in ``where the training has ended``.
    """

    module: Module
    body: ast.AST
    known: KnownNames
    told: str


def calibration_at(
    program: Program, spot: Spot, loops: list[TrainingLoop], models: set[Value]
) -> tuple[str, str | None]:
    """The source of the loader, and of a function that makes the model's input of a batch, where one is needed.

    Raises:
        NotQuantized: no loader of the training is in reach, or it is not known what the model is given of a batch.
    """
    reason: NotQuantized | None = None
    for loop in loops:
        try:
            inputs = input_of(program, loop, models)
        except NoInput as unclear:
            text = "it is not known what the model is given of a batch, to calibrate it with the same"
            node = unclear.node if unclear.node in loop.module.parents else loop.loop
            reason = reason or NotQuantized(loop.module, node, text)
            continue
        loader = _loader_at(program, spot, loop.use.loader, loop, 0)
        if loader is None:
            text = f"`{loop.module.text(loop.use.loader)}` is not in reach {spot.told}"
            reason = reason or NotQuantized(loop.module, loop.use.loader, text)
            continue
        return loader, None if inputs is None else f"lambda {BATCH}: {inputs}"
    text = "no loader gives the batches of the training, to calibrate with"
    raise reason or NotQuantized(program.entry, None, text)


def _loader_at(program: Program, spot: Spot, node: ast.expr, site: Site, depth: int) -> str | None:
    """The source, at the spot, of the loader that a loop iterates."""
    if depth > _MAX_CALLERS or not isinstance(node, (ast.Name, ast.Attribute)):
        return None
    if site.body is spot.body:
        return None if spot.known.unknown(node) else site.module.code(node)
    root: ast.expr = node
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return None
    info = program.function_of(site.body)
    if info is None:
        return None
    if root.id in info.parameters:
        callers = program.flow.callers(info)
        if len(callers) != 1 or any(
            isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store) and item.id == root.id for item in info.nodes
        ):
            return None
        call = callers[0]
        given: ast.expr | None = node
        if root.id == info.receiver:
            owner = call.call.func.value if isinstance(call.call.func, ast.Attribute) else None
            if not isinstance(owner, ast.Name) or owner.id != root.id:
                return None
        else:
            given = info.argument_or_default(call.call, root.id) if node is root else None
        if given is None:
            return None
        body = blocks.body_of(call.scope.module, call.call)
        return _loader_at(program, spot, given, Site(call.scope.module, call.scope, body, call.call), depth + 1)
    is_of_file = site.scope.owner(root.id).node is not site.scope.node and site.module is spot.module
    return site.module.code(node) if is_of_file and not spot.known.unknown(node) else None
