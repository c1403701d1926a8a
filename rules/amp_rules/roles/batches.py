"""Where the batches of a training loop come from."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from amp_rules.flow.values import CallSite
from amp_rules.roles.dispatch import callers_on_the_way
from amp_rules.roles.drawn_batches import DrawnBatches
from amp_rules.roles.loaders import Loaders, LoaderUse, is_loader
from amp_rules.roles.program import Program
from amp_rules.roles.reached_variables import reached_from, reads_any
from amp_rules.roles.receivers import Receivers
from amp_rules.roles.sites import Backward, Site, calling
from amp_rules.roles.sliced_batches import SlicedBatches
from amp_rules.roles.told_by_argument import is_ruled_out, may_reach
from amp_rules.roles.uncalled import uncalled
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import COMPREHENSIONS, own_name, walk
from amp_rules.torch.wrappers import PROGRESS_BARS

_MAX_CALLERS = 6
"""Callers of callers through which the loops around a step are followed; trainers have up to four. A loop further out
iterates over epochs, not batches."""

_GOES_OVER = PROGRESS_BARS | {"builtins.enumerate"}
"""Calls that give each batch of what they are given, once."""


@dataclass
class TrainingData:
    """What feeds the training steps.

    Attributes:
        uses: loaders iterated by training loops.
        evaluated: loaders iterated elsewhere.
        mixed: loops that do not train, over what hands on the batches of a training loop too.
        loops: the loops that take the batches from these.
        unfed: backward passes whose loop iterates no loader, and nothing that gives batches of the script's own.
        self_made: those whose batches the script makes by itself.
        random: the statement that draws batches at random, for those of ``unfed`` that do.
    """

    uses: list[LoaderUse] = field(default_factory=list)
    evaluated: list[LoaderUse] = field(default_factory=list)
    mixed: list[Site] = field(default_factory=list)
    loops: list[Site] = field(default_factory=list)
    unfed: list[Backward] = field(default_factory=list)
    self_made: list[Backward] = field(default_factory=list)
    random: dict[ast.AST, Site] = field(default_factory=dict)

    @property
    def sliced(self) -> set[ast.expr]:
        """What training loops iterate that is no loader."""
        return {use.loader for use in self.uses if use.slices is not None}


@dataclass(frozen=True)
class Feeding:
    """What gives a backward pass its batches.

    Attributes:
        loops: loops with the loaders that they take batches from.
        is_starved: whether it is run in another loop too, which takes no batches.
    """

    loops: list[tuple[Site, list[LoaderUse]]]
    is_starved: bool


class DataFlow:
    """Questions about loaders and loops."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.loaders = Loaders(program)
        self._drawn = DrawnBatches(program)
        self._sliced = SlicedBatches(program)
        # Many ways lead through the same loops and callers.
        self._uses: dict[ast.AST, list[LoaderUse]] = {}
        self._reaching: dict[tuple[ast.AST, ast.AST, ast.AST], bool] = {}

    def training_data(self) -> TrainingData:
        """Find what feeds every backward pass that the program runs."""
        data = TrainingData()
        receivers = Receivers(self.program)
        training: list[tuple[Site, LoaderUse]] = []
        for site in self.program.backwards:
            if site.body in self._uncalled or is_ruled_out(self.program, site.module, site.node):
                continue
            feeding = self.feeding(site)
            for loop, uses in feeding.loops:
                found = [receivers.trained_on(use) for use in uses]
                training.extend((loop, use) for use in found)
                data.loops.append(loop)
                known = {use.node for use in data.uses}
                data.uses.extend(use for use in found if use.node not in known)
            if any(use.slices is not None for _, uses in feeding.loops for use in uses):
                data.self_made.append(site)
            if (feeding.loops and not feeding.is_starved) or self._only_measures(site):
                continue
            data.unfed.append(site)
            drawn = self._drawn.statement(list(self.loops_of(site)), site)
            if drawn is not None:
                data.random[site.node] = drawn
        training_nodes = {use.node for _, use in training}
        mixed: list[tuple[Site, LoaderUse]] = []
        for loop, use in self._all_uses():
            if use.node not in training_nodes:
                data.evaluated.append(use)
            elif self._takes_from_training(loop, use):
                mixed.append((loop, use))
        for node in dict.fromkeys(use.node for _, use in mixed):
            self._part(
                data,
                [item for item in training if item[1].node is node],
                [item for item in mixed if item[1].node is node],
            )
        return data

    def _part(
        self, data: TrainingData, trained: list[tuple[Site, LoaderUse]], others: list[tuple[Site, LoaderUse]]
    ) -> None:
        """Tell the training loops over the objects of a class, which iterate one loader, from the loops that evaluate.

        Where each goes over an object itself, this is what is trained on or evaluated, and not what is within it.
        """
        over = [self._over_object(loop, use) for loop, use in trained]
        evaluated = [self._over_object(loop, use) for loop, use in others]
        if not all(over) or not all(evaluated):
            data.mixed.extend(loop for loop, _ in others)
            return
        within = trained[0][1].node
        place = next(index for index, use in enumerate(data.uses) if use.node is within)
        data.uses[place : place + 1] = [use for use in over if use is not None]
        data.evaluated.extend(use for use in evaluated if use is not None)

    def _over_object(self, loop: Site, use: LoaderUse) -> LoaderUse | None:
        """The object that a loop goes over, where its class iterates the loader by ``__iter__``."""
        info = self.program.function_of(use.body)
        if info is None or info.cls is None or info.name != "__iter__":
            return None
        if isinstance(loop.node, (ast.For, ast.AsyncFor)) and use.node not in {
            item.node for item in self._in_head(loop)
        }:
            return None
        node = getattr(loop.node, "iter", None)
        while isinstance(node, ast.Call) and node.args and self.program.callee_names(node, loop.scope) & _GOES_OVER:
            node = node.args[0]
        values = self.program.flow.values(node, loop.scope) if isinstance(node, (ast.Name, ast.Attribute)) else set()
        if not values or any(item.kind != "instance" or item.ref.find_method("__iter__") is None for item in values):
            return None
        assert isinstance(node, ast.expr)
        return LoaderUse(loop.module, loop.scope, loop.body, node, node, use.values)

    def _only_measures(self, site: Site) -> bool:
        """Whether a pass trains nothing: its function clears the gradients first, and no loop that runs it steps.

        So it is where the time of a pass is measured, on zeros.
        """
        info = self.program.function_of(site.body)
        loops = list(self.loops_of(site))
        if info is None or not loops or any(self.program.runs_step(loop.node) for loop in loops):
            return False
        suite = blocks.place(site.module, blocks.statement_of(site.module, site.node)).suite
        if suite != tuple(info.body) or any(map(self.program.runs_step, suite)):
            return False
        before = suite[: suite.index(blocks.statement_of(site.module, site.node))]
        return any(map(_clears_gradients, before))

    def _takes_from_training(self, loop: Site, use: LoaderUse) -> bool:
        """Whether a loop that does not train iterates what hands on the batches of a loader that is trained on."""
        info = self.program.function_of(loop.body)
        if (info is not None and info.yields) or use.node in set(walk(loop.node.iter)):  # type: ignore[attr-defined]
            return False
        return not any(map(self.program.runs_backward, getattr(loop.node, "body", ())))

    # ---- loops ---------------------------------------------------------------------------------------------

    def loops_of(self, site: Site, seen: frozenset[ast.AST] = frozenset()) -> Iterator[Site]:
        """Yield the loops that run ``site``, from the inside, through the callers of its function."""
        for statement in blocks.enclosing(site.module, site.node):
            if isinstance(statement, blocks.LOOPS):
                yield Site(site.module, site.scope, site.body, statement)
        info = self.program.function_of(site.body)
        if info is None or site.body in seen or len(seen) > _MAX_CALLERS:
            return
        for caller in self.program.flow.callers(info):
            yield from self.loops_of(calling(caller), seen | {site.body})

    def feeding(self, site: Backward, *, heads: bool = False) -> Feeding:
        """The loops that give a backward pass its batches, over loaders, or over places in the data.

        Args:
            site: the pass.
            heads: whether only loops count that iterate a loader in their head.
        """
        found = self._fed_by_loaders(site, heads=heads)
        sliced = None if found.loops else self._sliced.feeding(self.loops_of(site), site)
        if sliced is None:
            return found
        loop, use = sliced
        return Feeding([(loop, [use])], False)

    def _fed_by_loaders(
        self,
        site: Site,
        *,
        heads: bool = False,
        seen: frozenset[ast.AST] = frozenset(),
        in_loop: bool = False,
        taken: tuple[LoaderUse, ...] = (),
        runs: FunctionFacts | None = None,
    ) -> Feeding:
        """The loops that give a place its batches: on each way to it the innermost one that takes any.

        Args:
            site: the place.
            heads: whether only loops count that iterate a loader in their head.
            seen: functions that lie on the way from here to the place.
            in_loop: whether a loop without a loader does.
            taken: the loaders that functions on the way take a batch from: it is of the loop that calls them.
            runs: the function on the way that the place calls.
        """
        loops_below, in_own_loop = in_loop, False
        for comprehension, generators in () if heads else _comprehensions_around(site):
            in_loop = in_own_loop = True
            loop = Site(site.module, site.scope, site.body, comprehension)
            uses = [use for item in generators for use in self.loaders.iterated(item.iter, loop)]
            if uses:
                return Feeding([(loop, uses)], False)
        for statement in blocks.enclosing(site.module, site.node):
            if isinstance(statement, blocks.LOOPS):
                in_loop = in_own_loop = True
                loop = Site(site.module, site.scope, site.body, statement)
                uses = self._in_head(loop) if heads else list(self._uses_in(loop)) or list(taken)
                if uses:
                    return Feeding([(loop, uses)], False)
        info = self.program.function_of(site.body)
        callers: Sequence[CallSite] = ()
        if info is not None and len(seen) <= _MAX_CALLERS:
            callers = self._callers(info, site, runs)
        if site.body in seen or not callers:
            return Feeding([], in_loop and site.body not in seen)
        if not (taken or heads or in_own_loop):
            taken = tuple(self._taken_in(site, given=loops_below))
        below = seen | {site.body}
        ways = [
            self._fed_by_loaders(calling(item), heads=heads, seen=below, in_loop=in_loop, taken=taken, runs=info)
            for item in callers
        ]
        loops = {loop.node: (loop, uses) for way in ways for loop, uses in way.loops}
        return Feeding([*loops.values()], any(way.is_starved for way in ways))

    def _callers(self, info: FunctionFacts, site: Site, runs: FunctionFacts | None) -> list[CallSite]:
        found = self.program.flow.callers(info)
        if runs is not None:
            found = callers_on_the_way(self.program, info, site, runs)
        # ``update(batch, training=False)`` trains on nothing.
        return [item for item in found if self._may_reach(info, site, item)]

    def _may_reach(self, info: FunctionFacts, site: Site, caller: CallSite) -> bool:
        key = info.node, site.node, caller.call
        known = self._reaching.get(key)
        if known is None:
            known = self._reaching[key] = may_reach(info, site, caller)
        return known

    def _taken_in(self, site: Site, *, given: bool) -> Iterator[LoaderUse]:
        """Loaders that the function at a place takes one batch from, for what it trains on: ``next(batches)``.

        What it calls may go over the batch several times: with ``given``, only what the call at the place is given.
        """
        inner = list(self.program.nodes_of(site.body))
        for node in inner:
            if isinstance(node, ast.Call) and not self.program.without_gradients(site.module, node, site.body):
                if not any(isinstance(item, blocks.LOOPS) for item in blocks.enclosing(site.module, node)):
                    uses = list(self.loaders.taken(node, Site(site.module, site.scope, site.body, node)))
                    if uses and given:
                        reached = reached_from(blocks.statement_of(site.module, node), inner)
                        uses = uses if node in walk(site.node) or reads_any(reached, site.node) else []
                    yield from uses

    def _in_head(self, loop: Site) -> list[LoaderUse]:
        node = loop.node
        return self.loaders.iterated(node.iter, loop) if isinstance(node, (ast.For, ast.AsyncFor)) else []

    def _uses_in(self, loop: Site) -> list[LoaderUse]:
        known = self._uses.get(loop.node)
        if known is None:
            known = self._uses[loop.node] = list(self._found_in(loop))
        return known

    def _found_in(self, loop: Site) -> Iterator[LoaderUse]:
        """Loaders that the loop iterates, in its head or through ``next`` in its body."""
        node = loop.node
        found = self._in_head(loop)
        inner = [child for item in node.body for child in blocks.walk_own(item)]  # type: ignore[attr-defined]
        if found:
            # What else the round takes from a loader, for a look at the test set say, may not be what it trains on.
            beside = [
                child for child in inner if isinstance(child, ast.Call) and self._feeds_beside(child, loop, inner)
            ]
            yield from found
            yield from (use for child in beside for use in self.loaders.taken(child, loop))
            return
        if isinstance(node, ast.While):
            inner = [*walk(node.test), *inner]  # ``while (batch := next(batches, None)) is not None``
        inner = [child for child in inner if not (isinstance(child, ast.Call) and self._only_evaluates(child, loop))]
        taken = [use for child in inner for use in self.loaders.taken(child, loop)]
        yield from taken or (use for child in inner for use in self.loaders.fetched(child, loop))

    def _feeds_beside(self, call: ast.Call, loop: Site, inner: list[ast.AST]) -> bool:
        """Whether what a call takes beside the batch of the loop's head goes into its backward pass: unlabeled data."""
        if not any(self.loaders.taken(call, loop)) or self._only_evaluates(call, loop):
            return False
        reached = reached_from(blocks.statement_of(loop.module, call), inner)
        backwards = {site.node: site for site in self.program.backwards}
        return any(
            reads_any(reached, backwards[item].loss if item in backwards else item)
            for item in inner
            if isinstance(item, ast.Call) and self.program.runs_backward(item)
        )

    def _only_evaluates(self, call: ast.Call, loop: Site) -> bool:
        """Whether a round looks at how the model does with what a call gives: a batch of the test set now and then.

        That is what happens under ``no_grad``, or after ``model.eval()`` where no backward pass follows.
        """
        if self._goes_through_all(call):
            return True
        statement = blocks.statement_of(loop.module, call)
        if not isinstance(statement, ast.Assign):
            return self.program.without_gradients(loop.module, call, loop.body)
        suite = next(
            (
                block
                for block in (blocks.place(loop.module, item).suite for item in _up_to(loop, statement))
                if self._evaluates(loop, block)
            ),
            None,
        )
        if suite is None:
            return False
        inside = {node for item in suite for node in walk(item)}
        outside = [node for item in loop.node.body for node in walk(item) if node not in inside]  # type: ignore[attr-defined]
        given = blocks.writes_target(loop.node) if isinstance(loop.node, (ast.For, ast.AsyncFor)) else set()
        return all(
            path in given
            or any(isinstance(node, ast.stmt) and path in blocks.writes(node) for node in outside)
            or not any(isinstance(node, ast.expr) and path in blocks.reads(node) for node in outside)
            for path in blocks.writes(statement)
        )

    def _goes_through_all(self, call: ast.Call) -> bool:
        """Whether a function runs the model over a loader in its own loop, without gradients: for labels, say."""
        callees = self.program.flow.callees(call)
        return bool(callees) and all(
            not info.yields
            and any(
                isinstance(node, blocks.LOOPS)
                and self.program.without_gradients(info.module.module, node, info.node)
                and self.program.runs_model(node)
                for node in self.program.nodes_of(info.node)
            )
            and not self.program.runs_backward(info.node)
            for info in callees
        )

    def _evaluates(self, loop: Site, suite: tuple[ast.stmt, ...]) -> bool:
        if self.program.without_gradients(loop.module, suite[0], loop.body):
            return True
        switches = [item for item in suite if self._switches_to_evaluation(item, loop.scope)]
        return bool(switches) and not any(map(self.program.runs_backward, suite[suite.index(switches[0]) :]))

    def _switches_to_evaluation(self, statement: ast.stmt, scope: Scope) -> bool:
        call = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
        return (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "eval"
            and not call.args
            and any(self.program.is_trained(value) for value in self.program.roles.modules(call.func.value, scope))
        )

    def _all_uses(self) -> Iterator[tuple[Site, LoaderUse]]:
        for node, body, scope in self.program.nodes():
            site = Site(scope.module, scope, body, node)
            if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
                # A generator that trains takes its batches itself.
                if body in self._uncalled or self._is_batch(node.iter, scope) or self.program.runs_backward(node.iter):
                    continue
                if not self.loaders.hands_on(node.iter, site):
                    uses = self.loaders.iterated(node.iter, site)
                    yield from ((site, use) for use in uses if not self.loaders.iterates_itself(use))

    def _is_batch(self, node: ast.expr, scope: Scope) -> bool:
        """Whether this is one batch, of which a loop takes the parts: ``[part.to(device) for part in batch]``."""
        values = self.program.flow.values(node, scope)
        return any(value.kind == "batch" for value in values) and not any(map(is_loader, values))

    @cached_property
    def _uncalled(self) -> frozenset[ast.AST]:
        """Functions that the program does not run."""
        return uncalled(self.program)

    @cached_property
    def has_dropout(self) -> bool:
        """Whether the program builds or calls dropout, or draws the mask of one by hand."""
        return any(
            name == "torch.bernoulli" or (name.startswith("torch.nn.") and "dropout" in name.lower())
            for call, _, scope in self.program.calls()
            if isinstance(call.func, (ast.Name, ast.Attribute))
            for name in self.program.names(call.func, scope)
        ) or any(
            isinstance(call.func, ast.Attribute) and call.func.attr == "bernoulli_"
            for call, _, _ in self.program.calls()
        )


def _clears_gradients(statement: ast.stmt) -> bool:
    """``model.zero_grad()``."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and own_name(call.func) == "zero_grad"


def _comprehensions_around(site: Site) -> Iterator[tuple[ast.expr, list[ast.comprehension]]]:
    """Comprehensions that run a place for each element, with their loops: ``sum(train(x, y) for x, y in loader)``."""
    inner = site.node
    for parent in site.module.ancestors(site.node):
        if isinstance(parent, (ast.stmt, ast.Lambda)):
            return
        if isinstance(parent, COMPREHENSIONS) and inner is not parent.generators[0]:
            yield parent, parent.generators
        inner = parent


def _up_to(loop: Site, statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield a statement and those around it, up to a loop."""
    yield statement
    for parent in blocks.enclosing(loop.module, statement):
        if parent is loop.node:
            return
        if isinstance(parent, ast.stmt):
            yield parent
