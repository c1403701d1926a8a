"""Batches that a loop cuts out of the whole data by itself: ``for i in range(0, len(x), size): x[i : i + size]``.

The range says which batches there are. It can be shared out as a loader is, where all processes have the data in the
same order: random numbers that are drawn outside of a training loop are the same in all of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.roles.environments import unseeded_environment
from amp_rules.roles.loaders import LoaderUse, Slices
from amp_rules.roles.own_batches import OwnBatches
from amp_rules.roles.program import Program
from amp_rules.roles.reached_variables import reached_from, reached_from_paths, reads_any
from amp_rules.roles.sites import Backward, Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.wrappers import PROGRESS_BARS

_NUMBERS = frozenset({"builtins.min", "builtins.max", "builtins.int"})
_ASSIGNING = (ast.Assign, ast.AugAssign, ast.AnnAssign)
_LEAVING = (ast.Break, ast.Continue, ast.Return)
_HANDING_ON = PROGRESS_BARS | {"builtins.enumerate"}


class SlicedBatches:
    """Finds the range over which a loop takes its batches out of the data."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._own = OwnBatches(program)

    def feeding(self, loops: Iterable[Site], backward: Backward) -> tuple[Site, LoaderUse] | None:
        """The innermost loop around a backward pass that steps, and what it iterates, if that says what it trains on.

        Where an inner loop steps, as over the epochs of one window of the data, its rounds are not those of the data.
        """
        for loop in loops:
            if not any(map(self.program.runs_step, getattr(loop.node, "body", ()))):
                continue
            if not isinstance(loop.node, ast.For) or not self._is_only_way(loop, backward):
                return None
            found = _Round(self.program, self._own, loop, loop.node, backward).use()
            return (loop, found) if found is not None and unseeded_environment(self.program) is None else None
        return None

    def _is_only_way(self, loop: Site, backward: Backward) -> bool:
        """Whether the pass is run by this loop alone."""
        body = backward.body
        seen: set[ast.AST] = set()
        while body is not loop.body:
            info = self.program.function_of(body)
            callers = self.program.flow.callers(info) if info is not None else ()
            if len(callers) != 1 or body in seen:
                return False
            seen.add(body)
            body = calling(callers[0]).body
        return True


class _Round:
    """One round of a loop."""

    def __init__(self, program: Program, own: OwnBatches, loop: Site, node: ast.For, backward: Backward) -> None:
        self._program = program
        self._own = own
        self._loop = loop
        self._backward = backward
        self._node = node
        self._inner = [child for item in node.body for child in blocks.walk_own(item)]
        self._iterated = self._behind_the_bar()

    def _behind_the_bar(self) -> ast.expr:
        """What is iterated, without ``enumerate`` and a progress bar, which a variable, or a ``with``, may hold."""
        found = self._handed_on(self._node.iter)
        made = None
        if isinstance(found, ast.Name):
            made = blocks.opened_around(self._loop.module, self._node, found.id) or self._made(found)
        is_bar = isinstance(made, ast.Call) and self._program.callee_names(made, self._loop.scope) & PROGRESS_BARS
        return self._handed_on(made) if made is not None and is_bar else found

    def _handed_on(self, node: ast.expr) -> ast.expr:
        return _handed_on(node, self._program, self._loop.scope)

    def use(self) -> LoaderUse | None:
        """What is iterated, if it says which slices of the data the round trains on; None where the loop is another."""
        if not self._always_trains():
            return None
        return self._over_places() or self._over_slices() or self._over_items()

    def _over_places(self) -> LoaderUse | None:
        """``for i in range(0, len(x), size)``, where the round takes the rows by the place."""
        loop, place = self._loop, place_of(self._node)
        counted = _counted(self._iterated, self._program, loop.scope)
        if counted is None or place is None:
            return None
        places = _places({place.id}, self._inner, self._program, loop.scope)
        taken = {node: data for node, data in self._taken(places) if self._is_trained_on(node)}
        if not taken or self._leaves_by_place(places):
            return None
        data = [site for sites in taken.values() for site in sites]
        return self._use(counted, Slices(counted, loop.scope, tuple(data)))

    def _over_slices(self) -> LoaderUse | None:
        """``for x, y in batches(data)``, where a function of the project cuts the data by a range."""
        node = self._iterated
        made = self._made(node) if isinstance(node, ast.Name) else node
        callees = self._program.flow.callees(made) if isinstance(made, ast.Call) else ()
        cuts = [self._cut_by(info) for info in callees]
        if not cuts or cuts[0] is None or None in cuts:
            return None
        reached = reached_from_paths(blocks.writes_target(self._node), self._inner)
        return self._use(node, cuts[0]) if self._trains_on_any(reached) else None

    def _over_items(self) -> LoaderUse | None:
        """``for x, y in batches``, where the project makes them in any other way."""
        scope = self._loop.scope
        node = self._iterated
        if not self._own.gives(node, scope):
            return None
        items = [part for part in walk(self._node.target) if isinstance(part, ast.Name)]
        if any(self._program.roles.modules(blocks.reading(part), scope) for part in items):
            return None
        reached = reached_from_paths(blocks.writes_target(self._node), self._inner)
        if not self._trains_on_any(reached) or not self._runs_model_on(reached):
            return None
        return self._use(node, Slices(None, scope, ()))

    def _use(self, node: ast.expr, slices: Slices) -> LoaderUse:
        loop = self._loop
        return LoaderUse(loop.module, loop.scope, loop.body, node, node, frozenset(), slices)

    def _made(self, name: ast.Name) -> ast.expr | None:
        """What a variable is assigned, where that is done once in the function."""
        return blocks.given_once(self._program.nodes_of(self._loop.body), name.id)

    def _cut_by(self, info: FunctionFacts) -> Slices | None:
        """The slices that a function yields or collects, one for each place of a range."""
        scope = self._program.flow.scopes[info.node]
        for loop in blocks.walk_body(info.node):
            if not isinstance(loop, (ast.For, ast.comprehension)):
                continue
            whole = loop if isinstance(loop, ast.For) else scope.module.parents[loop]
            nodes = [*walk(whole)] if isinstance(loop, ast.comprehension) else [*blocks.walk_own(whole)]
            iterated = _handed_on(loop.iter, self._program, scope)
            counted, place = _counted(iterated, self._program, scope), place_of(loop)
            if place is None or counted is None:
                continue
            gives = any(isinstance(node, ast.Yield) for node in nodes) or isinstance(loop, ast.comprehension)
            gives = gives or any(isinstance(node, ast.Attribute) and node.attr == "append" for node in nodes)
            taken = [*_slices(_places({place.id}, nodes, self._program, scope), nodes, self._program, scope)]
            if taken and gives and not any(isinstance(node, ast.Break) for node in nodes):
                sites = tuple(Site(scope.module, scope, info.node, item.value) for item in taken)
                return Slices(counted, scope, sites)
        return None

    def _always_trains(self) -> bool:
        """Whether each round goes backward: no flag of a caller decides whether it trains or evaluates."""
        node = self._backward.node
        around = [item for item in blocks.enclosing(self._backward.module, node) if isinstance(item, ast.If)]
        inside = {*self._inner}
        calls = [item for item in self._inner if isinstance(item, ast.Call) and self._program.runs_backward(item)]
        around += [
            item
            for call in calls
            for item in blocks.enclosing(self._loop.module, call)
            if isinstance(item, ast.If) and item in inside
        ]
        return all(
            any(map(self._program.runs_backward, item.orelse))
            for item in around
            if item in inside or self._backward.body is not self._loop.body
        )

    def _taken(self, places: set[str]) -> Iterator[tuple[ast.expr, list[Site]]]:
        """Yield what takes rows by the place, here or in a function that is told it, and what it takes them of."""
        loop = self._loop
        for item in _slices(places, self._inner, self._program, loop.scope):
            yield item, [Site(loop.module, loop.scope, loop.body, item.value)]
        for node in self._inner:
            if not isinstance(node, ast.Call) or not places & blocks.reads(node):
                continue
            for info in self._program.flow.callees(node):
                given = {name for name, value in info.bound(node) if name and _is_name_in(value, places)}
                if not given:
                    continue
                scope = self._program.flow.scopes[info.node]
                nodes = [*blocks.walk_body(info.node)]
                inside = _slices(_places(given, nodes, self._program, scope), nodes, self._program, scope)
                data = [Site(scope.module, scope, info.node, item.value) for item in inside]
                if data:
                    yield node, data

    def _leaves_by_place(self, places: set[str]) -> bool:
        """Whether the place decides if the round trains: ``if i + size > len(x): break`` leaves out the last batch."""
        return any(
            isinstance(node, ast.If)
            and not places.isdisjoint(blocks.reads(node.test))
            and any(isinstance(part, _LEAVING) for item in node.body for part in blocks.walk_own(item))
            for node in self._inner
        )

    def _is_trained_on(self, taken: ast.expr) -> bool:
        """Whether the backward pass of the round comes of what is taken."""
        statement = blocks.statement_of(self._loop.module, taken)
        return self._trains_on_any(reached_from(statement, self._inner), taken)

    def _trains_on_any(self, paths: set[str], taken: ast.expr | None = None) -> bool:
        return any(
            reads_any(paths, self._loss_in(item)) or taken in set(walk(item))
            for item in self._inner
            if isinstance(item, ast.Call) and self._program.runs_backward(item)
        )

    def _runs_model_on(self, paths: set[str]) -> bool:
        """Whether a call that runs a model is given one of some variables."""
        return any(
            isinstance(node, ast.Call) and self._program.runs_model(node) and reads_any(paths, node)
            for node in self._inner
        )

    def _loss_in(self, call: ast.Call) -> ast.expr:
        return self._backward.loss if call is self._backward.node else call


def _handed_on(node: ast.expr, program: Program, scope: Scope) -> ast.expr:
    """What ``enumerate`` or a progress bar is given, or the expression itself."""
    while isinstance(node, ast.Call) and node.args and program.callee_names(node, scope) & _HANDING_ON:
        node = node.args[0]
    return node


def _counted(node: ast.expr, program: Program, scope: Scope) -> ast.Call | None:
    """The range that is iterated: of places, with a step, or of the numbers of batches."""
    if not isinstance(node, ast.Call) or not node.args or node.keywords:
        return None
    return node if "builtins.range" in program.callee_names(node, scope) else None


def place_of(loop: ast.For | ast.AsyncFor | ast.comprehension) -> ast.Name | None:
    """The variable that holds the place of a loop over slices: the last of its head, after ``enumerate``'s number."""
    last = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) else loop.target
    return last if isinstance(last, ast.Name) else None


def measured_by(node: ast.expr) -> ast.expr | None:
    """What a length is one of: ``x`` of ``len(x)``, ``x.size(0)`` and ``x.shape[0]``."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        if blocks.path_of(node.func) == "len":
            return node.args[0]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "size" and _is_zero(node.args[0]):
            return node.func.value
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and _is_zero(node.slice):
        return node.value.value if node.value.attr == "shape" else None
    return None


def _places(given: set[str], nodes: list[ast.AST], program: Program, scope: Scope) -> set[str]:
    """Variables that hold a place in the data: those that are given, and what is worked out of them."""
    found = set(given)
    while True:
        added = {
            path
            for node in nodes
            if isinstance(node, _ASSIGNING) and node.value is not None and _is_place(node.value, found, program, scope)
            for path in blocks.writes(node)
        }
        if added <= found:
            return found
        found |= added


def _is_place(node: ast.expr, places: set[str], program: Program, scope: Scope) -> bool:
    """Whether an expression is a number that is worked out of the place in the data: ``min(i + size, n)``."""
    if isinstance(node, ast.Name):
        return node.id in places
    if isinstance(node, ast.BinOp):
        return any(_is_place(item, places, program, scope) for item in (node.left, node.right))
    if isinstance(node, ast.Call) and program.callee_names(node, scope) & _NUMBERS:
        return any(_is_place(item, places, program, scope) for item in node.args)
    return False


def _slices(places: set[str], nodes: Iterable[ast.AST], program: Program, scope: Scope) -> Iterator[ast.Subscript]:
    """Yield what takes rows between two places: a slice of the first dimension, both ends of which are worked out."""
    for node in nodes:
        if not (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)):
            continue
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        if isinstance(first, ast.Slice) and first.step is None:
            ends = (first.lower, first.upper)
            if all(item is not None and _is_place(item, places, program, scope) for item in ends):
                yield node


def _is_name_in(node: ast.expr, places: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in places


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0
