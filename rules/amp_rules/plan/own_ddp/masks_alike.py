"""Masks of dropout that every process draws alike for its own samples: all are seeded with one number."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.model_parts import with_parts
from amp_rules.plan.own_ddp.drawn_alike import alike_seed, once_made, seeded_alike
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source.index import argument_at, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.torch.replication import DROPOUT

_LAYERS = frozenset(f"torch.nn.{name}" for name in "Dropout Dropout1d Dropout2d Dropout3d AlphaDropout".split())


def masks_alike(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first dropout of a trained model."""
    seed = alike_seed(own)
    first = next(_dropouts(own), None) if seed is not None else None
    if seed is not None and first is not None:
        text = (
            f"{seeded_alike(own, seed, first.module)}, so that `{first.module.text(first.node)}` draws from one stream "
            f"of numbers in each: add the rank to the seed {once_made(own)}"
        )
        yield first.module, first.node, text


def _dropouts(own: OwnDdp) -> Iterator[Site]:
    """Yield the layers of trained models, and the calls in their methods, that leave something out for certain."""
    parts = with_parts(own.program, own.program.trained)
    layers = {value.site for value in parts if value.kind == "object" and value.ref in _LAYERS}
    bodies = {
        method.node
        for value in parts
        if value.kind == "instance"
        for info in value.ref.mro()
        for method in info.facts.methods.values()
    }
    found = []
    for call, body, scope in own.program.calls():
        if scope.module not in own.modules or body in own.uncalled:
            continue
        is_layer = call in layers
        if is_layer or (body in bodies and _is_function(own, call, scope)):
            if _is_positive(own, argument_at(call, "p", 0 if is_layer else 1), scope):
                found.append(Site(scope.module, scope, body, call))
    yield from sorted(found, key=lambda site: (str(site.module.path), site.line))


def _is_function(own: OwnDdp, call: ast.Call, scope: Scope) -> bool:
    """Whether a call is of dropout as a function, and in training mode or always."""
    if not any(name.startswith(DROPOUT) for name in own.program.callee_names(call, scope)):
        return False
    return literal(argument_at(call, "training", 2)) is not False


def _is_positive(own: OwnDdp, given: ast.expr | None, scope: Scope) -> bool:
    """Whether a share that is left out is more than 0 for certain: torch's own is a half."""
    if given is None or isinstance(given, ast.Constant):
        value = literal(given) if given is not None else 0.5
        return isinstance(value, float) and value > 0
    info = own.program.function_of(scope.node)
    if not isinstance(given, ast.Name) or info is None or given.id not in info.parameters:
        return False
    callers = own.program.flow.callers(info)
    numbers = [literal(info.argument_or_default(caller.call, given.id)) for caller in callers]
    return bool(numbers) and all(isinstance(number, float) and number > 0 for number in numbers)
