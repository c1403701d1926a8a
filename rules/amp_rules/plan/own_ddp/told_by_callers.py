"""Numbers that a function gives back, and that its callers show."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.training_loops import variable
from amp_rules.plan.ways_to_show import is_shown
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks


def is_told_by_callers(own: OwnDdp, place: Site, names: Collection[str]) -> bool:
    """Whether a caller of the function around a place shows what that gives back of some variables, as it is."""
    info = own.program.function_of(place.body)
    items = set(_given_back(place, names)) if info is not None else set()
    if info is None or not items:
        return False
    for caller in own.program.flow.callers(info):
        site = calling(caller)
        statement = site.statement
        if not isinstance(statement, ast.Assign) or statement.value is not caller.call or len(statement.targets) != 1:
            continue
        shown = {name for item in items if (name := _name_of(statement.targets[0], item)) is not None}
        if any(
            isinstance(node, ast.Name) and node.id in shown and isinstance(node.ctx, ast.Load) and is_shown(site, node)
            for node in blocks.walk_body(site.body)
            if getattr(node, "lineno", 0) > statement.lineno
        ):
            return True
    return False


def _given_back(place: Site, names: Collection[str]) -> Iterator[int | None]:
    """Yield which element of the tuple that is given back holds one of the variables; None for the whole."""
    for node in blocks.walk_body(place.body):
        value = node.value if isinstance(node, ast.Return) else None
        if isinstance(value, ast.Tuple):
            yield from (number for number, item in enumerate(value.elts) if _divided(item) in names)
        elif value is not None and _divided(value) in names:
            yield None


def _divided(node: ast.expr) -> str | None:
    """The variable that an expression is, or that it divides: ``total / len(loader)``."""
    return variable(node.left if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else node)


def _name_of(target: ast.expr, item: int | None) -> str | None:
    """The variable that an element of a tuple, or the whole, becomes."""
    if item is None:
        return target.id if isinstance(target, ast.Name) else None
    elements = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    if any(isinstance(part, ast.Starred) for part in elements) or item >= len(elements):
        return None
    element = elements[item]
    return element.id if isinstance(element, ast.Name) else None
