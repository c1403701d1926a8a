"""Loops over epochs around a loop over a loader, and the number of the epoch there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from amp_rules.flow.values import CallSite
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rounds import begins_a_round
from amp_rules.roles.loaders import LoaderUse
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import literal
from amp_rules.source.resolver import names_of
from amp_rules.source.syntax import last_name, walk

_MAX_CALLERS = 6
"""Callers between the loop over batches and the one over epochs: ``train_epoch``, ``fit``, ``main``."""

_COUNTS = frozenset({"range", "trange", "tnrange", "count"})
_NAMES = ("epoch", "epoch_number")
"""What a ``_`` that counts is called."""
_AROUND = frozenset({"tqdm", "enumerate", "master_bar", "track", "list"})


@dataclass(frozen=True)
class Number:
    """The number of an epoch.

    Attributes:
        name: the variable, or an attribute: ``self.epoch``.
        renames: a ``_`` that it takes the place of.
    """

    name: str
    renames: ast.Name | None = None


@dataclass(frozen=True)
class EpochLoop(Site):
    """A loop over epochs.

    Attributes:
        loader: what holds the loader there; None where that is not known.
    """

    loader: ast.expr | None


def epoch_loops(own: OwnDdp, use: LoaderUse) -> Iterator[EpochLoop]:
    """Yield the nearest loops that count, around the loop over a loader or around the calls that lead there.

    Batches that are taken by hand begin anew in each round of the loop around ``batches = iter(loader)``.
    """
    inner: ast.stmt | None = next((item for item in _loops(use) if _goes_through(item, use.loader)), None)
    inner = inner or _loop_over_bar(use) or begins_a_round(use)
    if inner is not None:
        yield from _counting(own, Site(use.module, use.scope, use.body, inner), use.loader, frozenset())


def _loops(site: Site) -> Iterator[ast.For | ast.AsyncFor | ast.While]:
    for item in blocks.enclosing(site.module, site.node):
        if isinstance(item, blocks.LOOPS):
            yield item


def _goes_through(loop: ast.stmt, loader: ast.expr) -> bool:
    return isinstance(loop, (ast.For, ast.AsyncFor)) and any(node is loader for node in walk(loop.iter))


def _loop_over_bar(use: LoaderUse) -> ast.For | None:
    """The loop over a variable that holds the loader in a bar: ``bar = tqdm(loader)`` some lines above ``in bar``.

    The bar may be made in a branch, and the loop stand below both.
    """
    statement = use.statement
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if not isinstance(target, ast.Name):
        return None
    for item in _below(use, statement):
        if isinstance(item, ast.For) and any(isinstance(n, ast.Name) and n.id == target.id for n in walk(item.iter)):
            return item
        if target.id in blocks.writes(item):
            return None
    return None


def _below(site: Site, statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statements that run after one in its suite, and below the branches around it."""
    branches = takewhile(lambda item: isinstance(item, ast.If), blocks.enclosing(site.module, statement))
    for item in (statement, *branches):
        where = blocks.place(site.module, item)
        yield from where.suite[where.index + 1 :]


def _counting(own: OwnDdp, site: Site, loader: ast.expr | None, seen: frozenset[ast.AST]) -> Iterator[EpochLoop]:
    for loop in _loops(site):
        if number_of(own, Site(site.module, site.scope, site.body, loop)) is not None:
            yield EpochLoop(site.module, site.scope, site.body, loop, loader)
            return
    info = own.program.function_of(site.body)
    if info is None or info.node in seen or len(seen) > _MAX_CALLERS:
        return
    for caller in own.program.flow.callers(info):
        given = _given_by(own, caller, info, loader)
        yield from _counting(own, calling(caller), given, seen | {info.node})


def _given_by(own: OwnDdp, caller: CallSite, info: FunctionFacts, held: ast.expr | None) -> ast.expr | None:
    """What a function reads is where it is called: an argument, or the same attribute of the same object."""
    if isinstance(held, ast.Name):
        return info.argument_or_default(caller.call, held.id) if held.id in info.parameters else None
    path = blocks.path_of(held) if isinstance(held, ast.Attribute) else None
    around = own.program.function_of(calling(caller).body)
    if path is None or info.receiver is None or around is None or around.receiver != info.receiver:
        return None
    is_same = (
        path.startswith(f"{info.receiver}.") and blocks.path_of(caller.call.func) == f"{info.receiver}.{info.name}"
    )
    return held if is_same else None


def number_of(own: OwnDdp, site: Site) -> Number | None:
    """The variable that counts the rounds of a loop."""
    loop = site.node
    if isinstance(loop, ast.While):
        return _counted_up(loop)
    if not isinstance(loop, ast.For) or not _counts(own, loop.iter, site, 0):
        return None
    target = loop.target
    if isinstance(target, ast.Tuple) and last_name(getattr(loop.iter, "func", loop.iter)) == "enumerate":
        target = target.elts[0]
    if isinstance(target, ast.Attribute) and (path := blocks.path_of(target)) is not None:
        return Number(path)
    if not isinstance(target, ast.Name):
        return None
    if target.id != "_":
        return Number(target.id)  # at the head it is the count, whatever the body makes of it
    names = names_of(site.module)
    reads = [node for node in site.module.nodes if isinstance(node, ast.Name) and node.id == "_"]
    if own_count := _counted_beside(loop):
        return own_count
    free = next((name for name in _NAMES if not names.is_taken(name)), None)
    if free is None or any(isinstance(node.ctx, ast.Load) for node in reads):
        return None
    return Number(free, target)


def _counted_beside(loop: ast.For) -> Number | None:
    """``for _ in range(epochs): epoch += 1``: a variable that each round counts up once, and nothing else sets."""
    for item in loop.body:
        if isinstance(item, ast.AugAssign) and isinstance(item.op, ast.Add) and literal(item.value) == 1:
            path = blocks.path_of(item.target) if isinstance(item.target, (ast.Name, ast.Attribute)) else None
            others = [part for part in loop.body if part is not item]
            if path is None or "epoch" not in path.rpartition(".")[2].lower():
                continue
            if not any(path in blocks.writes(part) for part in others):
                return Number(path)
    return None


def _counts(own: OwnDdp, node: ast.expr, site: Site, depth: int) -> bool:
    """Whether going through an expression counts: ``range(...)``, ``trange(...)``, ``tqdm(range(...))``."""
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        if name in _COUNTS:
            return True
        if name == "enumerate":
            return False
        return name in _AROUND and bool(node.args) and _counts(own, node.args[0], site, depth)
    if isinstance(node, ast.NamedExpr):
        return _counts(own, node.value, site, depth)  # ``for epoch in (bar := trange(epochs)):``
    if isinstance(node, ast.Name) and not depth:
        values = [item for item in assigned(own.program, node, site.scope) if not _is_bar_around(item, node)]
        return bool(values) and all(_counts(own, value, site, depth + 1) for value in values)
    return False


def _is_bar_around(value: ast.expr, name: ast.Name) -> bool:
    """Whether a variable is put into a bar that takes its place: ``epochs = tqdm(epochs)``."""
    return (
        isinstance(value, ast.Call)
        and last_name(value.func) in _AROUND
        and bool(value.args)
        and isinstance(value.args[0], ast.Name)
        and value.args[0].id == name.id
    )


def _counted_up(loop: ast.While) -> Number | None:
    """``while epoch < epochs: ...; epoch += 1``: a variable that each round counts up once, at its end."""
    asked = {blocks.path_of(node) for node in walk(loop.test) if isinstance(node, (ast.Name, ast.Attribute))}
    for item in loop.body:
        if isinstance(item, ast.AugAssign) and isinstance(item.op, ast.Add) and literal(item.value) == 1:
            path = blocks.path_of(item.target) if isinstance(item.target, (ast.Name, ast.Attribute)) else None
            if path is not None and path in asked and "epoch" in path.rpartition(".")[2].lower():
                return Number(path)
    return None
