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
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
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
                    yield Site(loop.module, loop.scope, loop.body, handed_on(own, loop.node.iter, loop))
                break
    yield from _sliced(own)


def _sliced(own: OwnDdp) -> Iterator[Site]:
    """Yield the ranges by which loops take slices of data, of which nothing speaks of a rank."""
    for use in own.data.uses:
        if use.slices is None or use.slices.range is not use.loader or use.module not in own.modules:
            continue
        loop = next((item for item in blocks.enclosing(use.module, use.loader) if isinstance(item, ast.For)), None)
        taken = [use.loader, *(site.node for site in use.slices.data if isinstance(site.node, ast.expr))]
        if loop is None or any(names_rank(item) for item in loop.body if not isinstance(item, ast.If)):
            continue
        if not any(_speaks_of_rank(own, node, use.scope) for node in taken):
            yield Site(use.module, use.scope, use.body, use.loader)


def _written(node: ast.Name | ast.Attribute, scope: Scope) -> Iterator[ast.expr]:
    """Yield what the file gives a variable, also among others: ``x, y = load(rank)``."""
    path = blocks.path_of(node)
    owner = scope.owner(node.id).node if isinstance(node, ast.Name) else None
    for item in scope.module.nodes:
        if isinstance(item, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and item.value is not None:
            if path in blocks.writes(item) and owner in (None, blocks.body_of(scope.module, item)):
                yield item.value


def _speaks_of_rank(own: OwnDdp, node: ast.expr, scope: Scope) -> bool:
    """Whether data, or what it is made of, names a rank or a share."""
    pending = [(node, scope)]
    asked = {(node, scope)}
    for value, where in pending:
        if names_rank(value) or NAMED_SHARE.search(ast.unparse(value)):
            return True
        for part in walk(value):
            if isinstance(part, ast.Call) and any(names_rank(info.node) for info in own.program.flow.callees(part)):
                return True
            if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load):
                given = [item for item in _given(own, part, where) if item not in asked]
                asked.update(given)
                pending += given
    return False


def _given(own: OwnDdp, node: ast.Name | ast.Attribute, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what a variable gets, with the scope to read it in: what the file gives it, and what callers give it."""
    yield from ((value, scope) for value in _written(node, scope))
    info = own.program.function_of(scope.owner(node.id).node) if isinstance(node, ast.Name) else None
    if info is not None and isinstance(node, ast.Name) and node.id in info.parameters and node.id != info.receiver:
        for caller in own.program.flow.callers(info):
            value = info.argument_or_default(caller.call, node.id)
            if value is not None:
                yield value, caller.scope


def handed_on(own: OwnDdp, node: ast.expr, site: Site) -> ast.expr:
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
