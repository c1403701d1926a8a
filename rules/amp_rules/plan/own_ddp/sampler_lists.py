"""Samplers in a list, of which a loop gives one to each of several loaders, and none to some."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.syntax import is_none, last_name, walk

_MAX_NAMES = 4
"""Variables and parameters between a list and the loop over it."""


def is_of_some(own: OwnDdp, sampler: ast.expr, site: Site) -> bool:
    """Whether a loader gets an element of a list with samplers and with ``None``: ``[train_sampler, None]``."""
    if not isinstance(sampler, ast.Name):
        return False
    for loop in blocks.enclosing(site.module, site.node):
        held = _element_of(loop, sampler.id) if isinstance(loop, ast.For) else None
        if held is not None:
            return any(map(_is_mixed, _lists(own, held, site, _MAX_NAMES)))
    return False


def _element_of(loop: ast.For, name: str) -> ast.expr | None:
    """The list of which a variable of a loop is an element: in ``for data, sampler in zip(sets, samplers):``."""
    target, held = loop.target, loop.iter
    if isinstance(held, ast.Call) and last_name(held.func) == "enumerate" and held.args:
        if not (isinstance(target, ast.Tuple) and len(target.elts) == 2):
            return None
        target, held = target.elts[1], held.args[0]
    if isinstance(held, ast.Call) and last_name(held.func) == "zip" and isinstance(target, ast.Tuple):
        pairs = zip(target.elts, held.args, strict=False)
        return next((given for item, given in pairs if isinstance(item, ast.Name) and item.id == name), None)
    return held if isinstance(target, ast.Name) and target.id == name else None


def _lists(own: OwnDdp, node: ast.expr, site: Site, depth: int) -> Iterator[ast.expr]:
    """Yield what a list may be, as it is written."""
    if not isinstance(node, ast.Name):
        yield node
        return
    if not depth:
        return
    for value in assigned(own.program, node, site.scope):
        yield from _lists(own, value, site, depth - 1)
    info = own.program.function_of(site.body)
    if info is not None and node.id in info.parameters:
        for caller in own.program.flow.callers(info):
            given = info.argument_or_default(caller.call, node.id)
            if given is not None:
                yield from _lists(own, given, calling(caller), depth - 1)


def _is_mixed(node: ast.expr) -> bool:
    parts = [item for part in walk(node) if isinstance(part, ast.List) for item in part.elts]
    empty = [item for item in parts if is_none(item)]
    others = len(parts) > len(empty) or any(isinstance(part, ast.Call) for part in walk(node))
    return bool(empty) and others
