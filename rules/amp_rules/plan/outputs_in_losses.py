"""Outputs of a model that a loss reads for some data alone: what makes them gets no gradient in the other steps.

``if positive.any(): boxes = l1(box[positive], target) else: boxes = torch.tensor(0.0)`` in a function or a module that
is given the outputs.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator

from amp_rules.plan.changing import Changing
from amp_rules.plan.outputs_in_loss import at, item_of
from amp_rules.roles.gradient_paths import GradientPaths
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.differentiability import DETACHED_ATTRIBUTES, DETACHED_METHODS

_LEAVING = (ast.Return, ast.Continue)
_LOOPS = (ast.For, ast.AsyncFor)
_SUITES = (ast.If, ast.While, ast.With, ast.AsyncWith)
_MAX_DEPTH = 5
"""Functions and variables between a loss and the part of the model that makes what it is given."""


class OutputsInLosses:
    """Answers for the functions that training steps call.

    Args:
        program: the program.
        uses_part: whether running a node uses parameters of a model.
        entering: the reads, in the body of a call, of what the loss there is made of, or what the body returns.
    """

    def __init__(
        self,
        program: Program,
        uses_part: Callable[[ast.AST], bool],
        entering: Callable[[Site], list[ast.Name]],
    ) -> None:
        self._program = program
        self._uses_part = uses_part
        self._entering = entering
        self._changing = Changing(program)

    def reason(self) -> str:
        """A condition by which a function leaves out of its result what one part of the model makes for it alone."""
        for info in self._program.flow.functions.values():
            if info.node not in self._program.flow.scopes or info.name == "__init__" or not info.returns:
                continue
            if not any(isinstance(node, (ast.If, ast.IfExp)) for node in self._program.nodes_of(info.node)):
                continue
            reads = _Reads(self._program, info, self._entering, self._changing)
            for name in info.parameters:
                test = reads.left_out_by(name) if name != info.receiver else None
                if test is not None and self._is_made_apart(info, name, _MAX_DEPTH):
                    shown = at(self._program, info.module.module, test)
                    return f"{shown} decides which outputs of the model enter the loss"
        return ""

    # ---- what a function is given ----------------------------------------------------------------------------

    def _is_made_apart(self, info: FunctionFacts, name: str, depth: int) -> bool:
        """Whether some call that trains gives a parameter what a part of the model makes for it alone."""
        for caller in self._program.flow.callers(info):
            site = calling(caller)
            assert isinstance(site.node, ast.Call)
            given = info.argument(site.node, name)
            if given is None or self._program.without_gradients(site.module, site.node, site.body):
                continue
            if set(walk(site.node)).isdisjoint(self._entering(site)):
                continue  # nothing that the loss is made of comes of this call
            if self._is_apart(given, site, depth - 1):
                return True
        return False

    def _is_apart(self, given: ast.expr, site: Site, depth: int) -> bool:
        """Whether a part makes an expression, and nothing else that the body gives is made of what it reads."""
        calls = [part for part in walk(given) if isinstance(part, ast.Call) and self._uses_part(part)]
        if calls:
            return not any(self._runs_again(call, site) for call in calls)
        if depth == 0:
            return False
        info = self._program.function_of(site.body)
        for name in {part.id: part for part in walk(given) if isinstance(part, ast.Name)}.values():
            if not self._is_read_once(name, site):
                continue
            if info is not None and name.id in info.parameters:
                if self._is_made_apart(info, name.id, depth):
                    return True
            elif any(self._is_apart(value, where, depth - 1) for value, where in self._given(name, site)):
                return True
        return False

    def _runs_again(self, call: ast.Call, site: Site) -> bool:
        """Whether the body runs the same part in another place, so that it gets a gradient from there."""
        path = blocks.path_of(call.func)
        return path is not None and any(
            isinstance(other, ast.Call)
            and other is not call
            and blocks.path_of(other.func) == path
            and blocks.choice_between(site.module, call, other) is None
            for other in self._program.nodes_of(site.body)
        )

    def _is_read_once(self, name: ast.Name, site: Site) -> bool:
        """Whether the result of the body is made of a variable by this read alone, where this one runs."""
        here, statement = set(walk(site.node)), site.statement
        for other in self._entering(site):
            if other.id != name.id or other in here or _only_reshapes(site.module, other):
                continue
            if isinstance(statement, ast.Return) and other.lineno > statement.lineno:
                continue
            if blocks.choice_between(site.module, site.node, other) is None and not _is_detached(site.module, other):
                return False
        return True

    def _given(self, name: ast.Name, site: Site) -> Iterator[tuple[ast.expr, Site]]:
        """What a variable is given where the site may read it: an expression here, or an item of what a call gives."""
        for node in self._program.nodes_of(site.body):
            if not isinstance(node, ast.Assign) or blocks.choice_between(site.module, node, site.node) is not None:
                continue
            where = Site(site.module, site.scope, site.body, node)
            for target in node.targets:
                if blocks.path_of(target) == name.id and name not in set(walk(node.value)):
                    yield node.value, where
                elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(node.value, ast.Call):
                    for index, item in enumerate(target.elts):
                        if blocks.path_of(item) == name.id:
                            yield from self._items(node.value, index)

    def _items(self, call: ast.Call, index: int) -> Iterator[tuple[ast.expr, Site]]:
        for info in self._program.flow.callees(call):
            for given in info.returns:
                item = item_of(given, index)
                if item is not None:
                    yield item, Site(info.module.module, self._program.flow.scopes[info.node], info.node, item)


class _Reads:
    """What a function does with the variables out of which a gradient comes into its result."""

    def __init__(
        self, program: Program, info: FunctionFacts, entering: Callable[[Site], list[ast.Name]], changing: Changing
    ) -> None:
        self._program = program
        self._site = Site(info.module.module, program.flow.scopes[info.node], info.node, info.node)
        self._paths = GradientPaths(program)
        self._changing = changing
        self._known: dict[str, ast.expr | bool] = {}
        self._reads: defaultdict[str, list[tuple[ast.Name, ast.stmt]]] = defaultdict(list)
        for read in entering(self._site):
            statement = blocks.statement_of(self._site.module, read)
            if not isinstance(statement, _SUITES):
                self._reads[read.id].append((read, statement))

    def left_out_by(self, name: str) -> ast.expr | None:
        """The condition under which the result is not made of a variable, where it is made of it at other times."""
        found = self._enters(name)
        return found if isinstance(found, ast.expr) else None

    def _enters(self, name: str) -> ast.expr | bool:
        """Whether the result is made of a variable: always, never, or where a condition says so."""
        known = self._known.get(name)
        if known is None:
            self._known[name] = False  # while what it becomes is looked at
            known = self._known[name] = self._find(name)
        return known

    def _find(self, name: str) -> ast.expr | bool:
        reads = [
            (read, found) for read, statement in self._reads[name] if (found := self._leads(name, read, statement))
        ]
        nodes = {read for read, _ in reads}
        tests = [self._test_around(read, nodes) or found for read, found in reads]
        return True if True in tests else next(iter(tests), False)

    def _leads(self, name: str, read: ast.Name, statement: ast.stmt) -> ast.expr | bool:
        """Whether the result is made of what a statement makes of a variable."""
        if name not in self._paths.reads(statement):
            return False
        if isinstance(statement, ast.Return):
            return True
        written = blocks.writes_itself(statement) if isinstance(statement, _LOOPS) else blocks.writes(statement)
        if any("." in path for path in written):
            return True
        found = [self._enters(path) for path in sorted(written - {name})]
        return True if True in found else next((item for item in found if item is not False), False)

    def _test_around(self, read: ast.Name, others: set[ast.Name]) -> ast.expr | None:
        """The condition that a read stands under, if the other side does not read the variable and it may change."""
        for node, other in _choices(self._site.module, read, self._site.body):
            if others.isdisjoint(other):
                where = Site(self._site.module, self._site.scope, self._site.body, node)
                if self._changing.changes(node.test, where):
                    return node.test
        return None


def _choices(module: Module, node: ast.AST, body: ast.AST) -> Iterator[tuple[ast.If | ast.IfExp, set[ast.AST]]]:
    """The conditions of which a node runs on one side, and what runs on the other in its place."""
    child = node
    for parent in module.ancestors(node):
        if isinstance(parent, ast.IfExp) and child is not parent.test:
            yield parent, set(walk(parent.orelse if child is parent.body else parent.body))
        elif isinstance(parent, ast.If) and child is not parent.test:
            own, other = (parent.body, parent.orelse) if child in parent.body else (parent.orelse, parent.body)
            if not other and isinstance(own[-1], _LEAVING):
                place = blocks.place(module, parent)
                other = list(place.suite[place.index + 1 :])
            yield parent, {part for item in other for part in walk(item)}
        if isinstance(child, ast.stmt) and child is not body:
            place = blocks.place(module, child)
            for item in place.suite[: place.index]:
                if isinstance(item, ast.If):
                    for suite in (item.body, item.orelse):
                        if suite and isinstance(suite[-1], _LEAVING):
                            yield item, {part for inner in suite for part in walk(inner)}
        if parent is body:
            return
        child = parent


def _only_reshapes(module: Module, read: ast.Name) -> bool:
    """``box = box.view(-1, 4)``."""
    statement = blocks.statement_of(module, read)
    return isinstance(statement, ast.Assign) and blocks.writes(statement) == {read.id}


def _is_detached(module: Module, read: ast.Name) -> bool:
    """``box.detach()``, ``box.shape``."""
    parent = module.parents[read]
    return isinstance(parent, ast.Attribute) and parent.attr in DETACHED_METHODS | DETACHED_ATTRIBUTES
