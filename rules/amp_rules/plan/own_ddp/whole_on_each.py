"""Training data of which nothing gives a process its share: iterators of the script's own, and slices."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.flow.values import Value
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS
from amp_rules.torch.idioms import NAMED_SHARE
from amp_rules.torch.wrappers import PROGRESS_BARS

_HANDS_ON = PROGRESS_BARS | {"builtins.enumerate", "builtins.iter", "builtins.zip"}
_MAX_DEPTH = 4
"""Bars, counters and variables between a loop and what it iterates."""


def deals_out(own: OwnDdp) -> bool:
    """Whether an expression deals samples out: ``index % world_size``; ``rank % gpus`` is the rank on the machine."""
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mod)
        and names_rank(node.right)
        and not names_rank(node.left)
        for module in own.modules
        for node in module.nodes
    )


def whole_on_each(own: OwnDdp) -> Iterator[Site]:
    """Yield what training loops iterate that no loader of torch is behind, and that speaks of no rank."""
    if own.program.calls_to(DISTRIBUTED_SAMPLERS) or deals_out(own):
        return
    told: set[ast.AST] = set()
    for backward in (*own.data.unfed, *own.data.self_made):
        if backward.node in own.data.random:
            continue
        for loop in own.batches.loops_of(backward):
            if not isinstance(loop.node, ast.For) or names_rank(loop.node.iter):
                continue
            made = list(_made(own, loop.node.iter, loop, _MAX_DEPTH))
            if made and all(_is_whole(own, value) for value in made) and loop.module in own.modules:
                if loop.node not in told:
                    told.add(loop.node)
                    yield Site(loop.module, loop.scope, loop.body, _iterated(own, loop.node.iter, loop))
                break


def _iterated(own: OwnDdp, node: ast.expr, site: Site) -> ast.expr:
    """What bars and counters around it hand on."""
    while isinstance(node, ast.Call) and node.args and own.program.callee_names(node, site.scope) & _HANDS_ON:
        node = node.args[0]
    return node


def _made(own: OwnDdp, node: ast.expr, site: Site, depth: int) -> Iterator[Value | ast.Call]:
    """Yield the objects that a loop iterates, and the calls of generators."""
    if depth <= 0:
        return
    if isinstance(node, ast.Call):
        callees = own.program.flow.callees(node)
        if any(info.yields for info in callees):
            yield node
            return
        if own.program.callee_names(node, site.scope) & _HANDS_ON:
            for item in node.args:
                yield from _made(own, item, site, depth - 1)
            return
    instances = [value for value in own.program.flow.values(node, site.scope) if value.kind == "instance"]
    yield from (value for value in instances if value.ref.find_method("__iter__") is not None)
    if not instances and isinstance(node, (ast.Name, ast.Attribute)):
        for value in assigned(own.program, node, site.scope):
            if blocks.body_of(site.module, value) is site.body:
                yield from _made(own, value, site, depth - 1)


def _is_whole(own: OwnDdp, made: Value | ast.Call) -> bool:
    """Whether nothing in an iterator's text, or in the call that makes it, speaks of a rank or a share."""
    if isinstance(made, ast.Call):
        texts: list[ast.AST] = [made, *(info.node for info in own.program.flow.callees(made))]
        # A method gives the batches that its object has, which may have taken a share when it was made.
        owner = made.func.value if isinstance(made.func, ast.Attribute) else None
        located = own.program.locate(made)
        held = own.program.flow.values(owner, located[1]) if owner is not None and located is not None else ()
        texts += [info.facts.node for value in held if value.kind == "instance" for info in value.ref.mro()]
    else:
        texts = [info.facts.node for info in made.ref.mro()]
        texts += [made.site] if made.site is not None else []
        if _is_given_share(own, made):
            return False
        if made.ref.external_bases() - {"builtins.object"}:
            return False
    return not any(names_rank(text) or NAMED_SHARE.search(ast.unparse(text)) for text in texts)


def _is_given_share(own: OwnDdp, made: Value) -> bool:
    """Whether an iterator is made of a data set, or of samples, for which a call spoke of a rank."""
    call = made.site
    located = own.program.locate(call) if isinstance(call, ast.Call) else None
    if located is None or not isinstance(call, ast.Call):
        return False
    given = [*call.args, *(item.value for item in call.keywords)]
    values = {value for item in given for value in own.program.flow.values(item, located[1])}
    if any(
        value.kind == "instance" and any(names_rank(info.facts.node) for info in value.ref.mro()) for value in values
    ):
        return True
    sites = [value.site for value in values if value.site is not None]
    sites += [item for node in given for item in assigned(own.program, node, located[1]) if _is_path(node)]
    return any(map(names_rank, sites))


def _is_path(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute))
