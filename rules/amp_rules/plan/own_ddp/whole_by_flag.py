"""Loaders that a helper of the project gives no share where it is told so: ``make_loader(is_distributed=False)``."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.loaders import LoaderUse
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.told_by_argument import may_reach_within
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.torch.wrappers import PROGRESS_BARS

_MAX_DEPTH = 5
"""Names, parameters and helpers between a loop and the call that makes its loader."""


def is_whole_by_flag(own: OwnDdp, use: LoaderUse, samplers: Collection[ast.Call]) -> bool:
    """Whether each call that makes a loader keeps its helper from all that would give it a share.

    Args:
        own: the program.
        use: where the loader is iterated.
        samplers: the calls that make samplers which give shares.
    """
    makers = set()
    for value in use.values:
        located = own.program.locate(value.site) if isinstance(value.site, ast.Call) else None
        info = own.program.function_of(located[0]) if located is not None else None
        if info is None:
            return False
        makers.add(info.node)
    site = Site(use.module, use.scope, use.body, use.node)
    calls = list(_calls_of(own, use.loader, site, makers, _MAX_DEPTH))
    return (
        bool(calls)
        and bool(samplers)
        and all(
            call is not None and all(_is_kept_from(own, info, call, sampler) for sampler in samplers)
            for info, call in calls
        )
    )


def _calls_of(
    own: OwnDdp, node: ast.expr, site: Site, makers: Collection[ast.AST], depth: int
) -> Iterator[tuple[FunctionFacts, ast.Call | None]]:
    """Yield the calls of helpers that an expression may be given by; none instead where that is not known."""
    # A variable may be wrapped into itself: ``loader = tqdm(loader)``.
    if depth < 0:
        return
    if isinstance(node, ast.Call):
        for info in own.program.flow.callees(node):
            if info.node in makers:
                yield info, node
        if node.args and own.program.callee_names(node, site.scope) & PROGRESS_BARS:
            yield from _calls_of(own, node.args[0], site, makers, depth - 1)
        return
    if not depth or not isinstance(node, (ast.Name, ast.Attribute)):
        return
    for value in [*assigned(own.program, node, site.scope), *_unpacked(site, node)]:
        body = blocks.body_of(site.module, value)
        where = Site(site.module, own.program.flow.scopes[body], body, value)
        yield from _calls_of(own, value, where, makers, depth - 1)
    around = own.program.function_of(site.body)
    if around is not None and isinstance(node, ast.Name) and node.id in around.parameters:
        for caller in own.program.flow.callers(around):
            given = around.argument(caller.call, node.id)
            if given is None:
                yield around, None
            else:
                yield from _calls_of(own, given, calling(caller), makers, depth - 1)


def _unpacked(site: Site, node: ast.expr) -> Iterator[ast.expr]:
    """Yield the calls of a function that give a variable with others: ``loader, data = make_loader(rank=-1)``."""
    path = blocks.path_of(node)
    for item in blocks.walk_body(site.body):
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Call) and path in blocks.writes(item):
            if any(isinstance(target, (ast.Tuple, ast.List)) for target in item.targets):
                yield item.value


def _is_kept_from(own: OwnDdp, maker: FunctionFacts, call: ast.Call, sampler: ast.Call) -> bool:
    """Whether a call of a helper does not come to where a sampler is made, in it or in a function that it calls."""
    located = own.program.locate(sampler)
    info = own.program.function_of(located[0]) if located is not None else None
    if located is None or info is None:
        return False
    site = Site(located[1].module, located[1], located[0], sampler)
    if info.node is maker.node:
        return not may_reach_within(info, site, call, maker, call)
    inner = [
        node
        for node in blocks.walk_body(maker.node)
        if isinstance(node, ast.Call) and any(item.node is info.node for item in own.program.flow.callees(node))
    ]
    return bool(inner) and not any(may_reach_within(info, site, node, maker, call) for node in inner)
