"""Distributed samplers that a script makes, tells the epochs and gives no loader."""

from __future__ import annotations

import ast

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.syntax import is_none
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS


def unused_sampler(own: OwnDdp, loader: Site, dataset: ast.expr) -> str | None:
    """The variable of a sampler that was made for a loader of the same function, and that this one was to have.

    It is made of the same data in the same function above it, right there or with None in the other branch of one test,
    and is told the epochs.
    """
    call = loader.node
    data = blocks.path_of(dataset) if isinstance(dataset, (ast.Name, ast.Attribute)) else None
    if not isinstance(call, ast.Call) or data is None or literal(given_to_loader(call, "shuffle")) is not True:
        return None
    where = blocks.place(loader.module, loader.statement)
    for item in reversed(where.suite[: where.index]):
        name = _made_by(own, loader, item, data)
        if name is not None:
            later = where.suite[where.suite.index(item) + 1 : where.index]
            if any(blocks.touches({name, data}, blocks.writes(other)) for other in later):
                return None
            return name if _is_told(loader, name) and not _is_given(loader, name) else None
        if data in blocks.writes(item):
            return None
    return None


def _made_by(own: OwnDdp, loader: Site, item: ast.stmt, data: str) -> str | None:
    """The name that a statement gives a sampler of the data; or None in one of its two branches."""
    branches = [item.body, item.orelse] if isinstance(item, ast.If) else [[item]]
    if any(len(branch) != 1 for branch in branches):
        return None
    names: set[str] = set()
    made = 0
    for (statement,) in branches:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        target, value = statement.targets[0], statement.value
        if not isinstance(target, ast.Name):
            return None
        names.add(target.id)
        if isinstance(value, ast.Call) and own.program.callee_names(value, loader.scope) & DISTRIBUTED_SAMPLERS:
            if len(value.args) != 1 or value.keywords or blocks.path_of(value.args[0]) != data:
                return None
            if isinstance(item, ast.If) and not own.several_alone(loader.module, value):
                return None
            made += 1
        elif not is_none(value):
            return None
    if made != 1 or len(names) != 1:
        return None
    name = names.pop()
    owned = assigned(own.program, ast.Name(name, ast.Load()), loader.scope)
    return name if len(owned) == len(branches) else None


def _is_told(loader: Site, name: str) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == "set_epoch" and blocks.path_of(node.value) == name
        for node in blocks.walk_body(loader.body)
    )


def _is_given(loader: Site, name: str) -> bool:
    """Whether a loader, or anything else, is given the sampler: it is asked for attributes and tested alone."""
    parents = loader.module.parents
    for node in blocks.walk_body(loader.body):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            if not isinstance(parents[node], (ast.Attribute, ast.Compare, ast.If, ast.IfExp)):
                return True
    return False
