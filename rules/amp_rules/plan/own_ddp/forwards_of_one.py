"""Forward passes through ``DistributedDataParallel`` that one process runs alone."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from amp_rules.checks.common.rank_branches import in_several
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.wrappers import wrapped_by
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.index import argument_at, keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.apex import ALL_WRAPPERS
from amp_rules.torch.wrappers import TRACES

_Found = tuple[Module, ast.AST, str]
_MAX_CALLERS = 6
"""Functions between a test for the rank and a forward pass: ``validate``, ``evaluate``, ``extract``."""


def forwards_of_one(own: OwnDdp) -> Iterator[_Found]:
    """Yield such a pass, or the call that leads to it on one process: the first of each function."""
    wraps = _sending(own)
    told: set[ast.AST] = set()
    for call, body, scope in own.program.calls() if wraps else ():
        if body in told or own.program.is_model_code(body) or not own.program.called_models(call, scope):
            continue
        site = Site(scope.module, scope, body, call)
        where = _one_alone(own, call.func, site, site, wraps, set())
        if where is None or where.node in told:
            continue
        told |= {body, where.node}
        name = site.module.text(call.func)
        runs = f"only one process runs `{where.module.text(where.node)}`"
        leads = "" if where.node is call else f", which runs `{site.module.text(call)}`"
        yield (
            where.module,
            where.node,
            f"{runs}{leads}, and DistributedDataParallel broadcasts the model's "
            "buffers before it: the other processes receive them in a later pass, if at all; "
            f"`{name}.module` broadcasts nothing",
        )


def traces_wrapped(own: OwnDdp, statement: ast.AST) -> bool:
    """Whether a statement exports or traces what such a wrapper gives: that runs its forward pass."""
    traces = [site for site in own.program.calls_to(TRACES) if isinstance(site.node, ast.Call) and site.node.args]
    within = set(walk(statement)) if traces else set()
    found = [site for site in traces if site.node in within]
    wraps = _sending(own) if found else []
    return any(wrapped_by(own, site.node.args[0], site, wraps) for site in found)  # type: ignore[attr-defined]


def _sending(own: OwnDdp) -> list[Site]:
    """The wrappers that send the buffers of one process to all before a pass, as Apex's do not."""
    by_apex = {site.node for site in own.program.calls_to(ALL_WRAPPERS)}
    return [site for site in own.wraps if site.node not in by_apex and sends_buffers(own, site)]


def _one_alone(
    own: OwnDdp, model: ast.expr, held: Site, place: Site, wraps: Collection[Site], seen: set[ast.AST], depth: int = 0
) -> Site | None:
    """The place that one process alone gets to on a way to a call of what one of some wrappers may give.

    Args:
        own: the program.
        model: what is called, as it is read at ``held``.
        held: where it is read.
        place: the call on the way there that is asked about.
        wraps: the wrappers.
        seen: the calls that were asked about, of which many ways lead through the same.
        depth: how many functions lie between.
    """
    seen.add(place.node)
    if own.is_of_first_alone(place.module, place.node):
        if _others_do_too(own, place):
            return None
        return place if wrapped_by(own, model, held, wraps) else None
    info = own.program.function_of(place.body)
    if info is None or depth > _MAX_CALLERS:
        return None
    is_given = isinstance(model, ast.Name) and held.body is place.body and model.id in info.parameters
    for caller in own.program.flow.callers(info):
        site = calling(caller)
        given = info.argument_or_default(caller.call, model.id) if is_given and isinstance(model, ast.Name) else model
        if given is None or site.node in seen:
            continue
        found = _one_alone(own, given, site if is_given else held, site, wraps, seen, depth + 1)
        if found is not None:
            return found
    return None


def _others_do_too(own: OwnDdp, place: Site) -> bool:
    """Whether the other branch of a test around a call makes the same one: ``if rank == 0: ... else: ...``."""
    assert isinstance(place.node, ast.Call)
    called = ast.dump(place.node.func)
    within = place.statement
    for item in blocks.enclosing(place.module, place.statement):
        if isinstance(item, ast.If) and in_several(item.test) is None and own.tells_apart(place.module, item.test):
            others = item.orelse if within in item.body else item.body
            calls = (node for other in others for node in blocks.walk_own(other) if isinstance(node, ast.Call))
            if any(ast.dump(call.func) == called for call in calls):
                return True
        within = item
    return False


def sends_buffers(own: OwnDdp, wrapping: Site) -> bool:
    """Whether a wrapper sends buffers, which the model may have for all that is known."""
    call = wrapping.node
    assert isinstance(call, ast.Call)
    sends = keyword(call, "broadcast_buffers")
    if sends is not None and literal(sends) is not True:
        return False
    model = argument_at(call, "module", 0)
    values = own.program.roles.modules(model, wrapping.scope) if model is not None else set()
    return any(map(own.norms.are_in, values)) or any(
        _registers(info.facts.module.module, node)
        for value in own.program.with_parts(values)
        if value.kind == "instance"
        for info in value.ref.mro()
        for node in walk(info.facts.node)
    )


def _registers(module: Module, node: ast.AST) -> bool:
    """Whether a place registers a buffer in any case: a mask for old releases of torch alone is none today."""
    if not (isinstance(node, ast.Attribute) and node.attr == "register_buffer"):
        return False
    return not any(isinstance(item, ast.If) for item in blocks.enclosing(module, node))
