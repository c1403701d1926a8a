"""Masks of dropout that every process draws alike for its own samples: all are seeded with one number."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.drawn_alike import alike_seed, once_made, seeded_alike
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source.index import argument_at, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name
from amp_rules.torch.models import drops_out
from amp_rules.torch.replication import DROPOUT

_LAYERS = frozenset(f"torch.nn.{name}" for name in "Dropout Dropout1d Dropout2d Dropout3d AlphaDropout".split())
_FROM_PRETRAINED = "from_pretrained"


def masks_alike(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first dropout of a trained model: one that leaves something out for certain, if there is one."""
    seed = alike_seed(own)
    if seed is None:
        return
    found = list(_dropouts(own))
    sure = next((site for site, is_sure in found if is_sure), None) or next(_of_libraries(own), None)
    first = sure or next((site for site, _ in found), None)
    if first is not None:
        what = f"`{first.module.text(first.node)}` draws"
        if isinstance(first.node, ast.Call) and last_name(first.node.func) == _FROM_PRETRAINED:
            what = f"dropout in the model of `{first.module.text(first.node.func)}` draws"
        text = (
            f"{seeded_alike(own, seed, first.module)}, so that {what} from one stream of numbers in each"
            f"{'' if sure else ', where it leaves something out'}: add the rank to the seed {once_made(own)}"
        )
        yield first.module, first.node, text


def _dropouts(own: OwnDdp) -> Iterator[tuple[Site, bool]]:
    """Yield the layers of trained models, and the calls in their methods, with whether they leave something out."""
    parts = own.program.with_parts(own.program.trained)
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
            is_sure = _is_positive(own, argument_at(call, "p", 0 if is_layer else 1), scope)
            if is_sure is not False:
                found.append((Site(scope.module, scope, body, call), is_sure is True))
    yield from sorted(found, key=lambda item: (str(item[0].module.path), item[0].line))


def _of_libraries(own: OwnDdp) -> Iterator[Site]:
    """Yield the trained models that a library loads, with dropout by its settings, where something trains them so."""
    trains = any(
        isinstance(call.func, ast.Attribute) and call.func.attr == "train" and not call.args
        for call, _, _ in own.program.calls()
    )
    made = {value.site for value in own.program.trained if value.kind == "object" and drops_out(str(value.ref))}
    for call, body, scope in own.program.calls() if trains and made else ():
        if call in made and scope.module in own.modules and body not in own.uncalled:
            yield Site(scope.module, scope, body, call)


def _is_function(own: OwnDdp, call: ast.Call, scope: Scope) -> bool:
    """Whether a call is of dropout as a function, and in training mode or always."""
    if not any(name.startswith(DROPOUT) for name in own.program.callee_names(call, scope)):
        return False
    return literal(argument_at(call, "training", 2)) is not False


def _is_positive(own: OwnDdp, given: ast.expr | None, scope: Scope) -> bool | None:
    """Whether a share that is left out is more than 0: torch's own is a half. None where nothing says how large it is.

    A setting is none that is known: ``config.hidden_dropout_prob``.
    """
    if given is None or isinstance(given, ast.Constant):
        value = literal(given) if given is not None else 0.5
        return isinstance(value, float) and value > 0
    if isinstance(given, ast.Attribute):
        return None if "drop" in given.attr.lower() else False
    info = own.program.function_of(scope.node)
    if not isinstance(given, ast.Name) or info is None or given.id not in info.parameters:
        return False
    callers = own.program.flow.callers(info)
    numbers = [literal(info.argument_or_default(caller.call, given.id)) for caller in callers]
    return bool(numbers) and all(isinstance(number, float) and number > 0 for number in numbers)
