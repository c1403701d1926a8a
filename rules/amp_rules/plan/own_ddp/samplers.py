"""Distributed samplers of loaders that train, and how they are called at another place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.flow.values import Value
from amp_rules.plan.gradient_averaging import runs_once
from amp_rules.plan.own_ddp.bound import is_bound_at
from amp_rules.plan.own_ddp.epoch_loops import epoch_loops
from amp_rules.plan.own_ddp.idle import is_within_idle
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.loaders import LoaderUse
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none, last_name, walk
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS
from amp_rules.torch.idioms import NAMED_EVALUATION
from amp_rules.torch.wrappers import PROGRESS_BARS

_SHUFFLE = 3  # dataset, num_replicas, rank, shuffle


@dataclass(frozen=True)
class Sampler(Site):
    """A call of ``DistributedSampler``, with the loops over the loaders that train with it.

    Attributes:
        uses: the loaders where they are iterated.
        loaders: the values of these loaders.
        others: whether such a loader may have another sampler, or none.
    """

    uses: tuple[LoaderUse, ...]
    loaders: frozenset[Value]
    others: bool

    @property
    def call(self) -> ast.Call:
        """The constructor's call."""
        assert isinstance(self.node, ast.Call)
        return self.node

    @property
    def shuffles(self) -> bool:
        """Whether it may shuffle."""
        return _shuffles(self.call)

    def line_at(self, own: OwnDdp, loop: Site, loader: ast.expr | None, number: str | None) -> str | None:
        """The line that tells it the epoch at the head of a loop; None where neither it nor its loader is at hand.

        Args:
            own: the program.
            loop: the loop.
            loader: what holds the loader that trains there, if that is known.
            number: the number of the epoch; None for the one after that which the sampler was told last.
        """
        reads = _certain(own, self, loop, loader, list(_reads_at(own, self, loop, loader)))
        found = sorted(reads, key=lambda item: (item.is_loader, item.is_unsure, item.path))
        if not found:
            return None
        item = found[0]
        path = f"{item.path}.sampler" if item.is_loader else item.path
        line = f"{path}.set_epoch({number or f'{path}.epoch + 1'})"
        if not item.is_unsure or _is_told_above(loop, path):
            return line
        if item.may_be_none and not item.is_loader:
            return f"if {path} is not None:\n    {line}"
        word = own.word(loop.module, _SAMPLER)
        kind = f"isinstance({path}, {word})" if word is not None else f'hasattr({path}, "set_epoch")'
        return f"if {kind}:\n    {line}"


@dataclass(frozen=True)
class _Read:
    """A variable that can be read at a place, and holds the sampler or a loader with it."""

    path: str
    is_loader: bool
    is_unsure: bool
    may_be_none: bool


_SAMPLER = "torch.utils.data.distributed.DistributedSampler"


def samplers(own: OwnDdp) -> Iterator[Sampler]:
    """Yield the distributed samplers of loaders that train."""
    for site in own.program.calls_to(DISTRIBUTED_SAMPLERS):
        loaders: set[Value] = set()
        uses = []
        others = False
        for use in own.data.uses:
            with_it = {value for value in use.values if _holds(own, value, site)}
            if with_it:
                uses.append(use)
                loaders |= with_it
                others = others or with_it != use.values
        if uses and site.module in own.modules and not _is_of_one_process(own, site):
            yield Sampler(site.module, site.scope, site.body, site.node, tuple(uses), frozenset(loaders), others)


def _is_of_one_process(own: OwnDdp, site: Site) -> bool:
    """Whether a sampler is made under a test that comes out differently where its function is called.

    ``else: loader = make_loader(args)`` of ``if args.distributed:``, which the function asks as well.
    """
    info = own.program.function_of(site.body)
    callers = [calling(item) for item in own.program.flow.callers(info)] if info is not None else []
    if info is None or not callers or not all(own.contradict(site, item) for item in callers):
        return False
    called = {node for item in callers if isinstance(item.node, ast.Call) for node in walk(item.node.func)}
    # What starts processes with it calls it, too.
    return not any(
        last_name(node) == info.name and isinstance(node, (ast.Name, ast.Attribute)) and node not in called
        for node, _, _ in own.program.nodes()
    )


def never_told(own: OwnDdp) -> Iterator[Site]:
    """Yield those that feed no loop that was found, where the program tells no sampler an epoch."""
    calls = own.program.calls()
    if any(isinstance(call.func, ast.Attribute) and call.func.attr == "set_epoch" for call, _, _ in calls):
        return
    followed = [value for use in [*own.data.uses, *own.data.evaluated] for value in use.values]
    for site in own.program.calls_to(DISTRIBUTED_SAMPLERS):
        if site.module not in own.modules or not isinstance(site.node, ast.Call) or not _shuffles(site.node):
            continue
        if site.body in own.uncalled or is_within_idle(own.program, site.node, site.module):
            continue
        if not is_for_evaluation(site) and not any(_holds(own, item, site) for item in followed):
            yield site


def is_for_evaluation(site: Site) -> bool:
    """Whether the statement that makes a sampler names it for an evaluation, or its key among others does."""
    around = site.module.parents.get(site.node)
    if isinstance(around, ast.Dict) and site.node in around.values:
        key = literal(around.keys[around.values.index(site.node)])
        return isinstance(key, str) and bool(NAMED_EVALUATION.search(key))
    return any(map(NAMED_EVALUATION.search, {last_name(node) for node in walk(site.statement)}))


def _shuffles(call: ast.Call) -> bool:
    given = keyword(call, "shuffle") or (call.args[_SHUFFLE] if len(call.args) > _SHUFFLE else None)
    return given is None or literal(given) is not False


def is_shuffled(own: OwnDdp, loader: Value) -> bool:
    """Whether a loader may draw its samples by a distributed sampler that shuffles."""
    return any(
        item.name in DISTRIBUTED_SAMPLERS and isinstance(item.site, ast.Call) and _shuffles(item.site)
        for item in _samplers_in(own, loader)
    )


def told(own: OwnDdp, sampler: Sampler) -> bool:
    """Whether something tells the sampler an epoch, for all that is known."""
    for call, _, scope in own.program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr == "set_epoch":
            if _is_above_epochs(own, sampler, scope.module, call) or _is_told_by_first(own, scope.module, call):
                continue
            values = own.program.flow.values(call.func.value, scope)
            if not values or any(value.site is sampler.node or value.kind == "attribute" for value in values):
                return True
            # A loader of a class of the project's own need not show what its attribute holds.
            held = call.func.value
            if isinstance(held, ast.Attribute) and held.attr == "sampler":
                if own.program.flow.values(held.value, scope) & sampler.loaders:
                    return True
    return False


def _is_told_above(loop: Site, path: str) -> bool:
    """Whether a line above the loop tells it an epoch without a test: it is there."""
    where = blocks.place(loop.module, blocks.statement_of(loop.module, loop.node))
    calls = [item.value for item in where.suite[: where.index] if isinstance(item, ast.Expr)]
    return any(isinstance(call, ast.Call) and blocks.path_of(call.func) == f"{path}.set_epoch" for call in calls)


def _is_above_epochs(own: OwnDdp, sampler: Sampler, module: Module, call: ast.Call) -> bool:
    """Whether a call runs once, above the loop over epochs: all of them have the order of that one number."""
    if blocks.loop_around(module, call) is not None or not runs_once(own.program, module, call):
        return False
    loops = [loop for use in sampler.uses for loop in epoch_loops(own, use)]
    body = blocks.body_of(module, call)
    return bool(loops) and all(loop.body is body and loop.statement.lineno > call.lineno for loop in loops)


def _is_told_by_first(own: OwnDdp, module: Module, call: ast.Call) -> bool:
    """Whether the first process alone makes a call: the samplers of the others keep the order of the first epoch."""
    if module not in own.modules or not own.is_of_first_alone(module, call):
        return False
    # ``if sampler is not None:`` asks whether there are several processes.
    return any(isinstance(item, ast.If) and own.parts_first(module, item) for item in blocks.enclosing(module, call))


def sampler_of(call: ast.Call) -> ast.expr | None:
    """What a loader is given to draw its samples by."""
    return given_to_loader(call, "sampler")


def _holds(own: OwnDdp, loader: Value, sampler: Site) -> bool:
    return any(value.site is sampler.node for value in _samplers_in(own, loader))


def _samplers_in(own: OwnDdp, loader: Value) -> set[Value]:
    located = own.program.locate(loader.site) if isinstance(loader.site, ast.Call) else None
    if located is None or not isinstance(loader.site, ast.Call):
        return set()
    given = sampler_of(loader.site)
    return own.program.flow.values(given, located[1]) if given is not None else set()


def _parts(own: OwnDdp, loader: Value) -> Iterator[ast.expr | None]:
    """Yield the samplers that a loader may be given; None where it may have none."""
    located = own.program.locate(loader.site) if isinstance(loader.site, ast.Call) else None
    given = sampler_of(loader.site) if isinstance(loader.site, ast.Call) else None
    if located is None or given is None:
        yield None
    else:
        yield from _origins(own, given, located[1], _MAX_DEPTH)


def _reads_at(own: OwnDdp, sampler: Sampler, loop: Site, loader: ast.expr | None) -> Iterator[_Read]:
    """Yield the variables around a loop that hold the sampler or a loader with it, and are bound there."""
    changed = blocks.writes(loop.node)
    nodes = [(node, loop.scope, False) for node in blocks.walk_body(loop.body) if _is_variable(node)]
    for node, scope, is_of_subclass in [*nodes, *_attributes_of_object(own, loop)]:
        path = blocks.path_of(node)
        if path is None or not isinstance(node.ctx, ast.Load) or blocks.touches({path}, changed):  # type: ignore[attr-defined]
            continue
        # What the loop itself goes through is there, whatever it was made under.
        if path != _path(loader) and not is_bound_at(loop.module, loop.scope, path.partition(".")[0], loop.node):
            continue
        assert isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))
        values = own.program.flow.values(node, scope)
        if isinstance(node, ast.Subscript):
            path = own.source(scope.module, node)
            if not values & sampler.loaders:
                continue
        if any(value.site is sampler.node for value in values):
            origins = [*_origins(own, node, scope, _MAX_DEPTH)]
            others = [item for item in origins if item is not sampler.node]
            yield _Read(path, False, is_of_subclass or bool(others), all(is_none(item) for item in others))
        elif values & sampler.loaders and _behind_bar(own, node, scope) is node:
            parts = [part for value in values for part in _parts(own, value)]
            yield _Read(path, True, is_of_subclass or any(part is not sampler.node for part in parts), False)


def _is_variable(node: ast.AST) -> bool:
    """Whether a node reads a variable, or an element that is known by its name: ``loaders["train"]``."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and isinstance(node.value, (ast.Name, ast.Attribute))
    return isinstance(node, (ast.Name, ast.Attribute))


def _certain(own: OwnDdp, sampler: Sampler, loop: Site, loader: ast.expr | None, reads: list[_Read]) -> list[_Read]:
    """Those variables that hold the sampler of the loader that trains, and not one made at the same place for another.

    A function that makes a loader, ``create_loader(dataset)``, is called for the evaluation too.
    """
    given = {_path(sampler_of(item)) for item in _made_in(own, sampler, loop.body)}
    held = _path(_behind_bar(own, loader, loop.scope))
    found = []
    for item in reads:
        same = {other.path for other in reads if other.is_loader is item.is_loader}
        known = held == item.path.replace('"', "'") if item.is_loader else item.path in given
        made = [value.site for value in sampler.loaders] if item.is_loader else [sampler.node]
        if known or (len(same) == 1 and not any(_is_shared(own, n) for n in made)):
            found.append(item)
    return found


def _behind_bar(own: OwnDdp, node: ast.expr | None, scope: Scope) -> ast.expr | None:
    """What a progress bar that a variable holds goes through, which has no ``sampler``; else the node itself."""
    for item in _origins(own, node, scope, _MAX_DEPTH) if node is not None else ():
        located = own.program.locate(item) if isinstance(item, ast.Call) and item.args else None
        if located is not None and isinstance(item, ast.Call):
            if own.program.callee_names(item, located[1]) & PROGRESS_BARS:
                return item.args[0]
    return node


def _path(node: ast.AST | None) -> str | None:
    if isinstance(node, ast.Subscript) and _is_variable(node):
        return ast.unparse(node)
    return blocks.path_of(node) if isinstance(node, (ast.Name, ast.Attribute)) else None


def _made_in(own: OwnDdp, sampler: Sampler, body: ast.AST) -> Iterator[ast.Call]:
    """The loaders with a sampler that a function makes."""
    for loader in sampler.loaders:
        located = own.program.locate(loader.site) if isinstance(loader.site, ast.Call) else None
        if located is not None and located[0] is body and isinstance(loader.site, ast.Call):
            yield loader.site


def _is_shared(own: OwnDdp, node: ast.AST | None) -> bool:
    """Whether a call stands in a function that is called at several places."""
    located = own.program.locate(node) if isinstance(node, ast.Call) else None
    info = own.program.function_of(located[0]) if located is not None else None
    return info is not None and len(own.program.flow.callers(info)) > 1


def _attributes_of_object(own: OwnDdp, loop: Site) -> Iterator[tuple[ast.Attribute, Scope, bool]]:
    """Yield what other methods read of the object around a loop that its ``__init__`` has made.

    And whether they are those of a subclass: others may have another sampler, or none.
    """
    info, owner = own.program.function_of(loop.body), own.program.owner_of(loop.body)
    if info is None or owner is None or info.receiver is None or info.name == "__init__":
        return
    first = next((found for one in owner.mro() if (found := one.facts.method("__init__")) is not None), None)
    made = {path for item in first.body for path in blocks.writes(item)} if first is not None else set()
    for node, body, scope in own.program.nodes() if made else ():
        other = own.program.function_of(body)
        if not isinstance(node, ast.Attribute) or other is None or other.receiver != info.receiver:
            continue
        if isinstance(node.value, ast.Name) and node.value.id == info.receiver and blocks.path_of(node) in made:
            around = own.program.owner_of(body)
            if around is not None and owner in around.mro():
                yield node, scope, around is not owner


_MAX_DEPTH = 4
"""Names and parameters between a sampler and where it is read."""


def _origins(own: OwnDdp, node: ast.expr, scope: Scope, depth: int) -> Iterator[ast.expr]:
    """Yield the expressions that a variable is given; itself where they are not known."""
    if isinstance(node, ast.IfExp):
        yield from _origins(own, node.body, scope, depth)
        yield from _origins(own, node.orelse, scope, depth)
        return
    if not isinstance(node, (ast.Name, ast.Attribute)) or not depth:
        yield node
        return
    owner = scope.owner(node.id) if isinstance(node, ast.Name) else scope
    values = assigned(own.program, node, scope)
    for value in values:
        yield from _origins(own, value, owner, depth - 1)
    info = own.program.flow.functions.get(owner.node)
    given = info is not None and isinstance(node, ast.Name) and node.id in info.parameters
    if info is not None and isinstance(node, ast.Name) and given:
        callers = own.program.flow.callers(info)
        for caller in callers:
            argument = info.argument_or_default(caller.call, node.id)
            if argument is None:
                yield node
            else:
                yield from _origins(own, argument, caller.scope, depth - 1)
        given = bool(callers)
    if not values and not given:
        yield node
