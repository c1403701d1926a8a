"""Meters that stay those of one process beside others of the same loop, which the script reduces by their method."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from amp_rules.plan.own_ddp.meters import are_meters, reduction_of
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.torch.replication import CLOCKS

_READ = frozenset({"avg", "sum", "count"})


def meters_beside(own: OwnDdp) -> Iterator[tuple[Site, list[str]]]:
    """Yield the first call of each function that reduces a meter, and what else is to be reduced above it."""
    reducing: defaultdict[ast.AST, list[Site]] = defaultdict(list)
    updates: defaultdict[tuple[Scope, str], list[Site]] = defaultdict(list)
    for call, body, scope in own.program.calls():
        if not (isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)):
            continue
        site, name = Site(scope.module, scope, body, call), call.func.value.id
        method = _reduction(own, call.func.value, scope)
        if method is not None and call.func.attr == method and isinstance(scope.module.parents[call], ast.Expr):
            reducing[body].append(site)
        elif method is not None and call.func.attr == "update":
            updates[scope.owner(name), name].append(site)
    for sites in reducing.values():
        first = min(sites, key=lambda site: site.line)
        if first.module not in own.modules:
            continue
        reduced = {_held(site) for site in sites}
        loops = {loop for name in reduced for site in updates[first.scope.owner(name), name] for loop in _loops(site)}
        names = [
            name
            for (owner, name), filled in updates.items()
            if owner is first.scope and name not in reduced and _is_read_below(first, name)
            if all(loops.intersection(_loops(site)) and not _is_of_clock(own, site) for site in filled)
        ]
        if names:
            yield first, names


def _reduction(own: OwnDdp, held: ast.expr, scope: Scope) -> str | None:
    """The method by which the meter that a variable holds is reduced; None where it is anything else."""
    values = own.program.flow.values(held, scope)
    if not are_meters(own.program, values):
        return None
    methods = {reduction_of(own.program, value.ref) for value in values}
    return methods.pop() if len(methods) == 1 else None


def _held(site: Site) -> str:
    assert isinstance(site.node, ast.Call)
    return blocks.path_of(site.node.func.value) or ""  # type: ignore[attr-defined]


def _loops(site: Site) -> list[ast.For | ast.AsyncFor | ast.While]:
    """The innermost loop around a place."""
    loops = (item for item in blocks.enclosing(site.module, site.node) if isinstance(item, blocks.LOOPS))
    return [*loops][:1]


def _is_read_below(first: Site, name: str) -> bool:
    """Whether a function reads what a meter has kept below a place: ``return losses.avg``."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in _READ
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        and node.lineno > first.line
        for node in blocks.walk_body(first.body)
    )


def _is_of_clock(own: OwnDdp, site: Site) -> bool:
    return any(
        isinstance(node, ast.Call) and own.program.callee_names(node, site.scope) & CLOCKS
        for node in blocks.walk_own(site.node)
    )
