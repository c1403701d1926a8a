"""Losses that autocast refuses on CUDA, in a script that keeps its own autocast."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.lattice.half_precision import fate
from amp_rules.lattice.mode import Mode
from amp_rules.lattice.operation_names import function_named, layer_named
from amp_rules.plan.file_names import place_of
from amp_rules.plan.notes import OWN_STEP, note
from amp_rules.plan.report import Note
from amp_rules.roles.autocast_contexts import is_decorated_to_cast, may_cast
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at, literal
from amp_rules.torch.mixed_precision import AUTOCASTS_BY_DEVICE, TORCH_AUTOCASTS, is_off

_MAX_DEPTH = 8
"""Calls between a region and a loss: a step, a criterion, one of its parts."""


def is_refused(name: str) -> bool:
    """Whether autocast on CUDA refuses a function or layer: it does so for losses of probabilities alone."""
    operation = layer_named(name) or function_named(name)
    return bool(operation) and fate(operation, Mode(), autocast=True) == "refused"


def notes(program: Program) -> Iterator[Note]:
    """Yield one for each such loss that a region of the script may run, with no other context of autocast between."""
    losses = {site.node: site for site in _losses(program)}
    if not losses:
        return
    told: set[ast.AST] = set()
    for node, _, scope in program.nodes():
        if not isinstance(node, (ast.With, ast.AsyncWith)) or not _casts_on_cuda(program, node):
            continue
        for call in _calls_within(program, node):
            if call in losses and call not in told:
                told.add(call)
                site, place = losses[call], place_of(program, scope.module, node)
                text = (
                    f"`{site.module.text(call)}` may run under the autocast of {place}, which raises an error at "
                    "binary cross entropy of probabilities on CUDA: use `binary_cross_entropy_with_logits` on the "
                    "scores before the sigmoid, or turn autocast off around it"
                )
                yield note(OWN_STEP, site.module, call, text)


def _losses(program: Program) -> Iterator[Site]:
    """Yield the calls of the function, and those of the layer's objects."""
    for call, body, scope in program.calls():
        held = program.flow.values(call.func, scope)
        functions = {value.name for value in held if value.kind == "external" and function_named(value.name)}
        layers = {value.name for value in held if value.kind == "object" and layer_named(value.name)}
        if any(map(is_refused, functions | layers)):
            yield Site(scope.module, scope, body, call)


def _casts_on_cuda(program: Program, region: ast.With | ast.AsyncWith) -> bool:
    """Whether a region is one of torch's autocast on CUDA alone, that is not switched off where it is written."""
    for item in region.items:
        context = item.context_expr
        located = program.locate(context)
        if located is None or not isinstance(context, ast.Call):
            continue
        names = program.callee_names(context, located[1])
        if not names or any(is_off(name, context) for name in names):
            continue
        if names <= TORCH_AUTOCASTS:
            return literal(argument_at(context, "device_type", 0)) == "cuda"
        return names <= AUTOCASTS_BY_DEVICE and not any(".cpu." in name for name in names)
    return False


def _calls_within(program: Program, region: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that a region runs, in functions of the project too, and that no other context is around."""
    seen: set[ast.AST] = set()
    pending: list[tuple[ast.AST, int]] = [(part, _MAX_DEPTH) for part in getattr(region, "body", ())]
    while pending:
        node, depth = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, (ast.With, ast.AsyncWith)):
            located = program.locate(node)
            scope = located[1] if located is not None else None
            if any(may_cast(program, item.context_expr, scope) for item in node.items):
                continue
        pending.extend((item, depth) for item in ast.iter_child_nodes(node))
        if not isinstance(node, ast.Call):
            continue
        yield node
        for info in program.flow.callees(node) if depth else ():
            if info.node not in seen and not is_decorated_to_cast(program, info.node):
                seen.add(info.node)
                pending.extend((item, depth - 1) for item in blocks.own_parts(info.node))
