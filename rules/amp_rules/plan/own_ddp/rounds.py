"""Places between two rounds over a loader that no loop over epochs counts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.kinds import is_loader_value
from amp_rules.roles.loaders import LoaderUse
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.syntax import last_name, walk

_MAX_CALLERS = 6
"""Callers between the loop over batches and the ``while`` around it: ``train_epoch``, ``fit``, ``main``."""


@dataclass(frozen=True)
class Round(Site):
    """A statement between two rounds.

    Attributes:
        loader: what holds the loader there.
        is_over: whether the round ends with the statement; else the next one begins with it.
    """

    loader: ast.expr
    is_over: bool


def rounds(own: OwnDdp, use: LoaderUse) -> Iterator[Round]:
    """Yield the places between rounds over a loader.

    They are the end of a loop over it that a ``while`` runs again, here or in a generator that is given the loader, and
    ``batches = iter(loader)`` where no batch is left.
    """
    loop = _loop_over(use, use.loader)
    if loop is not None:
        if _is_repeated(own, Site(use.module, use.scope, use.body, loop), frozenset()):
            yield Round(use.module, use.scope, use.body, loop, use.loader, True)
        return
    parent = use.module.parents[use.loader]
    if not isinstance(parent, ast.Call):
        return
    if last_name(parent.func) == "iter":
        yield from _begun_again(use)
    yield from _in_generators(own, use, parent)


def _loop_over(site: Site, loader: ast.expr) -> ast.For | None:
    loops = (item for item in blocks.enclosing(site.module, loader) if isinstance(item, ast.For))
    return next((item for item in loops if any(node is loader for node in walk(item.iter))), None)


def _is_repeated(own: OwnDdp, site: Site, seen: frozenset[ast.AST]) -> bool:
    """Whether a ``while`` stands around a loop, in its function or around a call of that."""
    if any(isinstance(item, ast.While) for item in blocks.enclosing(site.module, site.node)):
        return True
    info = own.program.function_of(site.body)
    if info is None or info.node in seen or len(seen) > _MAX_CALLERS:
        return False
    return any(_is_repeated(own, calling(item), seen | {info.node}) for item in own.program.flow.callers(info))


def _begun_again(use: LoaderUse) -> Iterator[Round]:
    """Yield each ``batches = iter(loader)`` of the function, where some stand in ``except StopIteration:``.

    The others are those that a loop comes to again.
    """
    again = [node for node in _begun(use) if _is_at_the_end(use, node)]
    for node in _begun(use) if again else ():
        if node in again or blocks.loop_around(use.module, node) is not None:
            statement = blocks.statement_of(use.module, node)
            yield Round(use.module, use.scope, use.body, statement, node.args[0], False)


def begins_a_round(use: LoaderUse) -> ast.stmt | None:
    """The statement ``batches = iter(loader)`` by which a loader is used, where no other begins in the middle again."""
    call, statement = use.module.parents[use.loader], use.statement
    if not isinstance(statement, ast.Assign) or statement.value is not call or call not in _begun(use):
        return None
    return None if any(_is_at_the_end(use, node) for node in _begun(use)) else statement


def _begun(use: LoaderUse) -> list[ast.Call]:
    """The calls ``iter(loader)`` of the function around a use."""
    path = blocks.path_of(use.loader) if isinstance(use.loader, (ast.Name, ast.Attribute)) else None
    return [
        node
        for node in (blocks.walk_body(use.body) if path is not None else ())
        if isinstance(node, ast.Call) and last_name(node.func) == "iter" and len(node.args) == 1
        if isinstance(node.args[0], (ast.Name, ast.Attribute)) and blocks.path_of(node.args[0]) == path
    ]


def _is_at_the_end(use: LoaderUse, node: ast.AST) -> bool:
    """Whether a round begins where no batch is left: in ``except StopIteration:``."""
    handler = next((item for item in use.module.ancestors(node) if isinstance(item, ast.ExceptHandler)), None)
    return handler is not None and handler.type is not None and last_name(handler.type) == "StopIteration"


def _in_generators(own: OwnDdp, use: LoaderUse, call: ast.Call) -> Iterator[Round]:
    """Yield the loops over a parameter of a generator that is given loaders alone, which a ``while`` runs again."""
    for info in own.program.flow.callees(call):
        scope = own.program.flow.scopes.get(info.node)
        if not info.yields or scope is None:
            continue
        given = {name for name in info.parameters if info.argument_or_default(call, name) is use.loader}
        for node in blocks.walk_body(info.node):
            if not (isinstance(node, ast.Name) and node.id in given and isinstance(node.ctx, ast.Load)):
                continue
            values = own.program.flow.values(node, scope)
            module = info.module.module
            site = Site(module, scope, info.node, node)
            loop = _loop_over(site, node)
            if loop is None or not values or not all(map(is_loader_value, values)):
                continue
            if any(isinstance(item, ast.While) for item in blocks.enclosing(module, loop)):
                yield Round(module, scope, info.node, loop, node, True)
