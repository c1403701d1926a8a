"""Meters that one process alone updates, and all compare by what nothing has given the others: None."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.flow.values import ClassInfo
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import is_none, last_name, walk

_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def meters_of_one(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first comparison by each such meter."""
    told: set[str] = set()
    for node, body, scope in own.program.nodes():
        if not (isinstance(node, ast.Compare) and isinstance(node.ops[0], _ORDERS)) or body in own.uncalled:
            continue
        site = Site(scope.module, scope, body, node)
        for side in (node.left, node.comparators[0]):
            read = _attribute(site, side)
            if read is None or scope.module not in own.modules or last_name(read.value) in told:
                continue
            if own.reach(scope.module, node) is not Reach.EVERY or own.is_of_first_alone(scope.module, node):
                continue
            update = _update_of_one(own, read, site)
            if update is not None:
                told.add(last_name(read.value))
                text = f"`{update}` runs on one process alone: on the others `{scope.module.text(read)}` is None, and "
                yield scope.module, node, f"{text}`{scope.module.text(node)}` raises TypeError"


def _attribute(site: Site, side: ast.expr) -> ast.Attribute | None:
    """``self.losses.val``, itself or through a variable that the line above gives it."""
    if isinstance(side, ast.Name):
        where = blocks.place(site.module, site.statement)
        given = [item for item in where.suite[: where.index] if side.id in blocks.writes(item)]
        if not given or not isinstance(given[-1], ast.Assign):
            return None
        side = given[-1].value
    return side if isinstance(side, ast.Attribute) and isinstance(side.value, ast.Attribute) else None


def _update_of_one(own: OwnDdp, read: ast.Attribute, site: Site) -> str | None:
    """The call that alone gives a meter what is read of it, where one process comes to it; None where others may."""
    values = own.program.flow.values(read.value, site.scope)
    owners = {value.ref for value in values if value.kind == "instance"}
    if len(owners) != 1 or not all(value.kind == "instance" for value in values):
        return None
    owner: ClassInfo = owners.pop()
    updating = _updating(owner, read.attr)
    if not updating or _is_set_elsewhere(own, owner, read.attr):
        return None
    calls: list[Site] = []
    for call, body, scope in own.program.calls():
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in updating or body in own.uncalled:
            continue
        held = call.func.value
        if isinstance(held, ast.Name) and any(v.ref is owner for v in own.program.flow.values(held, scope)):
            return None  # another name for it, perhaps
        if isinstance(held, ast.Attribute) and held.attr == last_name(read.value):
            calls.append(Site(scope.module, scope, body, call))
    if not calls or not all(own.is_of_first_alone(item.module, item.node) for item in calls):
        return None
    return calls[0].module.text(calls[0].node.func)  # type: ignore[attr-defined]


def _updating(owner: ClassInfo, name: str) -> frozenset[str]:
    """The methods that give an attribute a value; none where an object has one from the beginning, or is derived."""
    methods = owner.facts.methods
    init = methods.get("__init__")
    if init is None or len(owner.mro()) > 1 or owner.external_bases() - {"builtins.object"}:
        return frozenset()
    begun = {"__init__"} | {
        node.func.attr
        for node in walk(init.node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods
    }
    given = {method: list(_given(info, name)) for method, info in methods.items()}
    first = [value for method in begun for value in given[method]]
    if not first or not all(map(is_none, first)):
        return frozenset()
    return frozenset(method for method, found in given.items() if any(not is_none(value) for value in found))


def _given(method: FunctionFacts, name: str) -> Iterator[ast.expr]:
    """Yield what a method gives an attribute of its object."""
    for node in walk(method.node):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(part, ast.Attribute) and part.attr == name for item in targets for part in walk(item)):
                yield node.value


def _is_set_elsewhere(own: OwnDdp, owner: ClassInfo, name: str) -> bool:
    """Whether something else than its class may give such an object the attribute, as by its state."""
    inside = {info.node for info in owner.facts.methods.values()}
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr in (name, "__dict__")
        and body not in inside
        and not _is_never_run(own, body)
        for node, body, _ in own.program.nodes()
    )


def _is_never_run(own: OwnDdp, body: ast.AST) -> bool:
    """Whether nothing calls a function, or a method by its name."""
    info = own.program.function_of(body)
    return body in own.uncalled or (
        info is not None
        and not own.program.flow.callers(info)
        and not any(
            isinstance(node, (ast.Name, ast.Attribute)) and last_name(node) == info.name
            for node, _, _ in own.program.nodes()
        )
    )
