"""Loops that know how many batches a loader gives, and take them by ``next``: a rank's share has fewer."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from amp_rules.flow.cells import CellKey
from amp_rules.flow.values import Value
from amp_rules.plan.ending_iterators import counted_range, ends_within
from amp_rules.plan.share_steps import StepCount, covers
from amp_rules.plan.whole_lengths import WholeLengths
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.loaders import Loaders, is_loader
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk

_SAMPLERS = frozenset({"sampler", "batch_sampler"})
_MAX_VARIABLES = 4
"""Variables and parameters between a number and the loop that it ends: one for each function that hands it on."""

Place = tuple[ast.expr, Scope]


@dataclass(frozen=True)
class CountedLoop(Site):
    """A ``for`` loop over a range.

    Attributes:
        iterator: what it takes its batches from, where the range may have nothing to do with their number.
    """

    iterator: str | None = None


def counted_batches(
    program: Program, data: TrainingData, lengths: WholeLengths, shares: list[StepCount]
) -> Iterator[CountedLoop]:
    """Yield the ``for`` loops over a range that would ask a rank's share for more batches than it has."""
    trained = {use.node for use in data.uses}
    loaders = Loaders(program)
    found: set[ast.AST] = set()
    for call, body, scope in program.calls():
        site = Site(scope.module, scope, body, call)
        uses = [use for use in loaders.taken(call, site) if use.node in trained] if len(call.args) <= 1 else []
        if not uses or _starts_again(program, loaders, call):
            continue
        for parent in blocks.enclosing(scope.module, call):
            if isinstance(parent, ast.Try):
                break
            if not isinstance(parent, blocks.LOOPS):
                continue
            if isinstance(parent, ast.For) and parent not in found:
                bounds = _bounds(program, counted_range(program, parent.iter, site), site, lengths)
                if bounds and not _is_of_share(program, bounds, shares):
                    counts = _is_counted(program, bounds, lengths)
                    behind = {value for use in uses for value in use.values}
                    iterator = None if counts else ends_within(program, call, parent, site, behind)
                    if counts or iterator is not None:
                        found.add(parent)
                        loop = parent if counts else _outermost(program, call, parent, site, behind)
                        yield CountedLoop(scope.module, scope, body, loop, iterator)
            break


def _outermost(program: Program, call: ast.Call, loop: ast.For, site: Site, behind: set[Value]) -> ast.For:
    """The outermost of the counted loops around a call that its iterator is to last for."""
    for parent in blocks.enclosing(site.module, loop):
        if isinstance(parent, ast.For) and _end_of(counted_range(program, parent.iter, site)) is not None:
            if ends_within(program, call, parent, site, behind) is not None:
                loop = parent
                continue
        if isinstance(parent, blocks.LOOPS):
            break
    return loop


def _end_of(node: ast.expr) -> ast.expr | None:
    """Where a range ends: the number in ``range(n)``."""
    if not (isinstance(node, ast.Call) and blocks.path_of(node.func) == "range" and node.args):
        return None
    return node.args[-1 if len(node.args) == 1 else 1]


def _starts_again(program: Program, loaders: Loaders, call: ast.Call) -> bool:
    """Whether a function of the project takes the batch, and begins the loader anew where it has ended."""
    callees = program.flow.callees(call)
    return bool(callees) and all(_catches_end(program, loaders, info) for info in callees)


def _catches_end(program: Program, loaders: Loaders, info: FunctionFacts) -> bool:
    """Whether each batch that a function takes is taken in a ``try``, or in its handler after that."""
    scope = program.flow.scopes[info.node]
    taking = [
        node
        for node in program.nodes_of(info.node)
        if isinstance(node, ast.Call) and any(loaders.taken(node, Site(scope.module, scope, info.node, node)))
    ]
    return bool(taking) and all(
        any(isinstance(parent, ast.Try) and parent.handlers for parent in blocks.enclosing(scope.module, node))
        for node in taking
    )


def _bounds(program: Program, node: ast.expr, site: Site, lengths: WholeLengths) -> list[Place]:
    """Where a range ends, and what the variables in there may be."""
    end = _end_of(node)
    if end is None:
        return []
    found: dict[ast.expr, Scope] = {end: site.scope}
    added = dict(found)
    for _ in range(_MAX_VARIABLES):
        keys = {key for item, scope in added.items() for key in _read(program, item, scope)}
        given = [place for key in keys for place in lengths.assigned.get(key, ())]
        added = {item: scope for item, scope in given if item not in found}
        found |= added
    return list(found.items())


def _read(program: Program, node: ast.AST, scope: Scope) -> Iterator[CellKey]:
    """The variables that an expression reads: of ``args.steps`` that alone, and not ``args``."""
    for part in walk(node):
        parent = scope.module.parents.get(part)
        if isinstance(part, (ast.Name, ast.Attribute)) and not isinstance(parent, ast.Attribute):
            key = program.flow.key(part, scope)
            if key is not None and not (isinstance(parent, ast.Call) and parent.func is part):
                yield key


def _is_of_share(program: Program, bounds: list[Place], shares: list[StepCount]) -> bool:
    """Whether a number is one that a loader's length is part of, or of ``shares``, which are made those of a rank."""
    return any(covers(shares, bound) for bound, _ in bounds) or any(
        is_loader(value)
        for bound, scope in bounds
        for part in walk(bound)
        if isinstance(part, ast.Call) and blocks.path_of(part.func) == "len" and part.args
        for value in program.flow.values(part.args[0], scope)
    )


def _is_counted(program: Program, bounds: list[Place], lengths: WholeLengths) -> bool:
    """Whether a number is a quotient, as ``size // batch_size``, what a sampler was made with, or not known at all."""
    if any(isinstance(part, ast.BinOp) and _divides(part) for bound, _ in bounds for part in walk(bound)):
        return True
    if _is_unknown_parameter(program, *bounds[0], lengths):
        return True
    read = {key for bound, scope in bounds for key in _read(program, bound, scope)}
    return not read.isdisjoint(_given_to_samplers(program, lengths))


def _is_unknown_parameter(program: Program, node: ast.expr, scope: Scope, lengths: WholeLengths) -> bool:
    """Whether a number is a parameter of which no caller says what it is: ``train(**settings)``."""
    info = program.function_of(scope.node)
    if info is None or not isinstance(node, ast.Name) or node.id not in info.parameters:
        return False
    return not lengths.assigned.get((info.node, node.id)) and not program.flow.values(node, scope)


def _divides(node: ast.BinOp) -> bool:
    return isinstance(node.op, (ast.Div, ast.FloorDiv))


def _given_to_samplers(program: Program, lengths: WholeLengths) -> set[CellKey]:
    """The variables that say how many samples the loaders' samplers draw, with those that they were made of."""
    pending: list[Place] = []
    for value in lengths.loaders:
        pending += _arguments(program, value.site, _SAMPLERS)
    found: set[CellKey] = set()
    seen: set[ast.AST] = set()
    while pending:
        node, scope = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if not lengths.is_batch_size(node, scope):
            found.update(key for part in _factors(node, lengths, scope) for key in _read(program, part, scope))
        for value in program.flow.values(node, scope):
            if value.kind in ("object", "instance"):
                pending += _arguments(program, value.site, None)
    for _ in range(_MAX_VARIABLES):
        more = {
            key
            for known in found
            for item, scope in lengths.assigned.get(known, ())
            if isinstance(item, (ast.Name, ast.Attribute))
            for key in _read(program, item, scope)
        }
        if more <= found:
            break
        found |= more
    return found


def _factors(node: ast.expr, lengths: WholeLengths, scope: Scope) -> Iterable[ast.expr]:
    """``steps`` of ``steps * batch_size``."""
    if isinstance(node, ast.BinOp):
        return [part for part in (node.left, node.right) if not lengths.is_batch_size(part, scope)]
    return [] if isinstance(node, ast.Call) else [node]


def _arguments(program: Program, call: ast.AST | None, names: frozenset[str] | None) -> list[Place]:
    """What a call was given, or what it was given by some names."""
    located = program.locate(call) if isinstance(call, ast.Call) else None
    if located is None or not isinstance(call, ast.Call):
        return []
    given = [*call.args] if names is None else []
    given += [item.value for item in call.keywords if names is None or item.arg in names]
    return [(item, located[1]) for item in given]
