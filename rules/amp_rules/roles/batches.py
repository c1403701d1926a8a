"""Where the batches of a training loop come from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from amp_rules.roles.loaders import Loaders, LoaderUse
from amp_rules.roles.receivers import Receivers
from amp_rules.roles.steps import Backward, Program, Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk

_RANDOM_INDEX = (
    "torch.randint", "torch.randperm", "torch.rand", "torch.randn", "torch.multinomial",
    "numpy.random.", "random.randint", "random.sample", "random.choice", "random.choices", "random.random",
    "random.randrange", "torch.normal", "torch.Tensor.uniform_",
)  # fmt: skip
_CHOICES = {"random.choice", "random.sample", "random.choices", "numpy.random.choice"}
_MAX_CALLERS = 6
"""Callers of callers through which the loops around a step are followed; trainers have up to four. A loop further out
iterates over epochs, not batches."""


@dataclass
class TrainingData:
    """What feeds the training steps.

    Attributes:
        uses: loaders iterated by training loops.
        evaluated: loaders iterated elsewhere.
        mixed: loops that do not train, over what hands on the batches of a training loop too.
        loops: the loops that take the batches from these.
        unfed: backward passes whose loop iterates no loader.
        random: the statement that draws batches at random, for those of ``unfed`` that do.
    """

    uses: list[LoaderUse] = field(default_factory=list)
    evaluated: list[LoaderUse] = field(default_factory=list)
    mixed: list[Site] = field(default_factory=list)
    loops: list[Site] = field(default_factory=list)
    unfed: list[Backward] = field(default_factory=list)
    random: dict[ast.AST, Site] = field(default_factory=dict)


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
        self._drawing: dict[ast.AST, bool] = {}
        self._asked: set[FunctionFacts] = set()
        self._deciding = False

    def training_data(self) -> TrainingData:
        """Find what feeds every backward pass of the program."""
        data = TrainingData()
        receivers = Receivers(self.program)
        training_nodes: set[ast.AST] = set()
        for site in self.program.backwards:
            feeding = self.feeding(site)
            for loop, uses in feeding.loops:
                found = [receivers.trained_on(use) for use in uses]
                training_nodes.update(use.node for use in found)
                data.loops.append(loop)
                known = {use.node for use in data.uses}
                data.uses.extend(use for use in found if use.node not in known)
            if feeding.loops and not feeding.is_starved:
                continue
            data.unfed.append(site)
            drawn = self._random_batch(site)
            if drawn is not None:
                data.random[site.node] = drawn
        for loop, use in self._all_uses():
            if use.node not in training_nodes:
                data.evaluated.append(use)
            elif self._takes_from_training(loop, use):
                data.mixed.append(loop)
        return data

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

    def feeding(
        self, site: Site, *, heads: bool = False, seen: frozenset[ast.AST] = frozenset(), in_loop: bool = False
    ) -> Feeding:
        """The loops that give a place its batches: on each way to it the innermost one that takes any.

        Args:
            site: the place.
            heads: whether only loops count that iterate a loader in their head.
            seen: functions that lie on the way from here to the place.
            in_loop: whether a loop without a loader does.
        """
        for statement in blocks.enclosing(site.module, site.node):
            if isinstance(statement, blocks.LOOPS):
                in_loop = True
                loop = Site(site.module, site.scope, site.body, statement)
                uses = self._in_head(loop) if heads else list(self._uses_in(loop))
                if uses:
                    return Feeding([(loop, uses)], False)
        info = self.program.function_of(site.body)
        callers = self.program.flow.callers(info) if info is not None and len(seen) <= _MAX_CALLERS else ()
        if site.body in seen or not callers:
            return Feeding([], in_loop and site.body not in seen)
        ways = [
            self.feeding(calling(caller), heads=heads, seen=seen | {site.body}, in_loop=in_loop) for caller in callers
        ]
        loops = {loop.node: (loop, uses) for way in ways for loop, uses in way.loops}
        return Feeding([*loops.values()], any(way.is_starved for way in ways))

    def _in_head(self, loop: Site) -> list[LoaderUse]:
        node = loop.node
        return self.loaders.iterated(node.iter, loop) if isinstance(node, (ast.For, ast.AsyncFor)) else []

    def _uses_in(self, loop: Site) -> Iterator[LoaderUse]:
        """Loaders that the loop iterates, in its head or through ``next`` in its body."""
        node = loop.node
        found = self._in_head(loop)
        if found:
            # What else the round takes from a loader, for a look at the test set say, is not what it trains on.
            yield from found
            return
        inner = [child for item in node.body for child in blocks.walk_own(item)]  # type: ignore[attr-defined]
        if isinstance(node, ast.While):
            inner = [*walk(node.test), *inner]  # ``while (batch := next(batches, None)) is not None``
        inner = [child for child in inner if not (isinstance(child, ast.Call) and self._only_evaluates(child, loop))]
        taken = [use for child in inner for use in self.loaders.taken(child, loop)]
        yield from taken or (use for child in inner for use in self.loaders.fetched(child, loop))

    def _only_evaluates(self, call: ast.Call, loop: Site) -> bool:
        """Whether a round looks at how the model does with what a call gives: a batch of the test set now and then.

        That is what happens under ``no_grad``, or after ``model.eval()`` where no backward pass follows.
        """
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
        return all(
            any(isinstance(node, ast.stmt) and path in blocks.writes(node) for node in outside)
            or not any(isinstance(node, ast.expr) and path in blocks.reads(node) for node in outside)
            for path in blocks.writes(statement)
        )

    def _evaluates(self, loop: Site, suite: tuple[ast.stmt, ...]) -> bool:
        if self.program.without_gradients(loop.module, suite[0], loop.body):
            return True
        switches = [item for item in suite if self._switches_to_evaluation(item, loop.scope)]
        return bool(switches) and not any(map(self.program.runs_backward, suite[suite.index(switches[0]) :]))

    def _switches_to_evaluation(self, statement: ast.stmt, scope: Scope) -> bool:
        call = statement.value if isinstance(statement, ast.Expr) else None
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
                if not self.loaders.hands_on(node.iter, site) and not self.program.runs_backward(node.iter):
                    yield from ((site, use) for use in self.loaders.iterated(node.iter, site))

    # ---- batches made by hand ------------------------------------------------------------------------------

    def _random_batch(self, site: Backward) -> Site | None:
        """The statement that draws the batch of this step at random, if the whole batch is drawn so.

        The loop must iterate over nothing but a counter; what the loss is computed from must come from a random
        draw made anew in every round.
        """
        loops = list(self.loops_of(site))
        if not loops:
            return None
        for loop in loops:
            if isinstance(loop.node, (ast.For, ast.AsyncFor)) and not self._counts(loop):
                return None
        inner = loops[0]
        for current in (child for item in inner.node.body for child in blocks.walk_own(item)):  # type: ignore[attr-defined]
            if isinstance(current, ast.Call) and self._draws_batch(current, inner.scope):
                return Site(inner.module, inner.scope, inner.body, blocks.statement_of(inner.module, current))
        return None

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

    def _counts(self, loop: Site) -> bool:
        iterated = loop.node.iter  # type: ignore[attr-defined]
        while isinstance(iterated, ast.Call) and iterated.args and not self._is_counter(iterated, loop.scope):
            iterated = iterated.args[0]
        if not (isinstance(iterated, ast.Call) and self._is_counter(iterated, loop.scope)):
            return False
        counter = blocks.writes_target(loop.node)  # type: ignore[arg-type]
        return not any(
            isinstance(node, ast.Subscript) and blocks.reads(node.slice) & counter
            for item in loop.node.body  # type: ignore[attr-defined]
            for node in blocks.walk_own(item)
        )

    def _is_counter(self, call: ast.Call, scope: Scope) -> bool:
        return bool(self.program.names(call.func, scope) & {"builtins.range", "itertools.count"})

    def _draws_batch(self, call: ast.Call, scope: Scope) -> bool:
        """Whether the call runs a function of the project that indexes data with random numbers and returns them."""
        return any(self._is_drawing(info) for info in self.program.flow.callees(call))

    def _is_drawing(self, info: FunctionFacts) -> bool:
        if info.node not in self._drawing:
            if self._deciding:
                # What is not known yet draws nothing for now; who asked is asked again when it turns out to.
                self._asked.add(info)
                return False
            self._decide(info)
        return self._drawing[info.node]

    def _decide(self, start: FunctionFacts) -> None:
        """Decide for a function and all that it asks for: those that call each other are decided together."""
        drawing: set[ast.AST] = set()
        askers: dict[ast.AST, list[FunctionFacts]] = {}
        seen = {start}
        pending = [start]
        self._deciding = True
        while pending:
            info = pending.pop()
            if info.node in drawing:
                continue
            self._asked = set()
            if self._draws_and_returns(info):
                self._drawing[info.node] = True
                drawing.add(info.node)
                pending.extend(askers.get(info.node, ()))
                continue
            for asked in self._asked:
                askers.setdefault(asked.node, []).append(info)
                if asked not in seen:
                    seen.add(asked)
                    pending.append(asked)
        self._deciding = False
        for info in seen:
            self._drawing.setdefault(info.node, False)

    def _draws_and_returns(self, info: FunctionFacts) -> bool:
        body, scope = info.body, self.program.flow.scopes[info.node]
        if not body:
            return False
        derived = self._derived_from_draws(body, scope)
        indexed = [
            node
            for item in body
            for node in walk(item)
            if isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Load)
            and (blocks.reads(node.slice) & derived or self._draws(node.slice, scope))
        ]
        if any(node in indexed for item in info.returns for node in walk(item)):
            return True
        chooses = indexed or self._chooses(body, scope) or self._asks_for_draw(body)
        return bool(chooses) and any(blocks.reads(item) & derived for item in info.returns)

    def _asks_for_draw(self, body: list[ast.stmt]) -> bool:
        """Whether the function has another one draw: ``line = random_line(lines)``."""
        return any(
            isinstance(node, ast.Call) and any(self._is_drawing(info) for info in self.program.flow.callees(node))
            for item in body
            for node in walk(item)
        )

    def _chooses(self, body: list[ast.stmt], scope: Scope) -> bool:
        """Whether the function draws from the data itself: ``random.choice(lines)``."""
        return any(
            isinstance(node, ast.Call)
            and isinstance(node.func, (ast.Name, ast.Attribute))
            and self.program.names(node.func, scope) & _CHOICES
            for item in body
            for node in walk(item)
        )

    def _derived_from_draws(self, body: list[ast.stmt], scope: Scope) -> set[str]:
        """Names of a function that hold random numbers or what was made from them."""
        derived: set[str] = set()
        while True:
            before = len(derived)
            for statement in (node for item in body for node in walk(item)):
                if isinstance(statement, (ast.Assign, ast.Expr)):
                    if self._draws(statement.value, scope) or blocks.reads(statement.value) & derived:
                        # What an object keeps may be from another round, drawn when all ranks were alike.
                        derived |= {path for path in blocks.writes(statement) if "." not in path}
                elif isinstance(statement, (ast.For, ast.comprehension)):
                    if blocks.reads(statement.iter) & derived:
                        derived |= {node.id for node in walk(statement.target) if isinstance(node, ast.Name)}
            if len(derived) == before:
                return derived

    def _draws(self, node: ast.expr, scope: Scope) -> bool:
        return any(
            isinstance(child, ast.Call)
            and (
                any(name.startswith(_RANDOM_INDEX) for name in self.program.names(child.func, scope))
                or any(self._is_drawing(info) for info in self.program.flow.callees(child))
            )
            for child in walk(node)
            if not isinstance(child, ast.Call) or isinstance(child.func, (ast.Name, ast.Attribute))
        )


def _up_to(loop: Site, statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield a statement and those around it, up to a loop."""
    yield statement
    for parent in blocks.enclosing(loop.module, statement):
        if parent is loop.node:
            return
        if isinstance(parent, ast.stmt):
            yield parent
