"""Outputs of a model that do not enter the loss in every step: their part of the model gets no gradient then."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from amp_rules.plan.changing import Changing
from amp_rules.plan.file_names import line_of
from amp_rules.plan.precision import Precision
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import COMPREHENSIONS, own_variables, walk

_ASSIGNING = (ast.Assign, ast.AugAssign, ast.AnnAssign)


def at(program: Program, module: Module, node: ast.AST) -> str:
    """A piece of code and its line, for the report; its file, too, where that is not the script itself."""
    line = line_of(program, module, getattr(node, "lineno", 1), program.entry)
    return f"`{module.text(node)}` ({line})"


class Outputs:
    """Answers for the calls of a trained model.

    Args:
        program: the program.
        precision: its training steps.
        uses_part: whether running a node uses parameters of a model.
    """

    def __init__(self, program: Program, precision: Precision, uses_part: Callable[[ast.AST], bool]) -> None:
        self._program = program
        self._precision = precision
        self._uses_part = uses_part
        self._changing = Changing(program)

    def reason(self, calls: list[Site]) -> str:
        """A condition by which one of several outputs does not enter the loss in each step."""
        for call in calls:
            statement = call.statement
            unread = self._unread_item(call)
            if unread:
                return unread
            if not isinstance(statement, ast.Assign):
                continue
            outputs = {path for target in statement.targets for path in _elements(target)}
            outputs |= self._items(statement, call)
            unread = self._unread_output(call, statement) or self._read_at_times(call, statement)
            if unread:
                return unread
            picked = self._picked_loss(call, statement)
            if picked is not None:
                return f"{self._at(call, picked)} decides which outputs of the model enter the loss"
            for node in self._program.nodes_of(call.body):
                if not isinstance(node, (ast.If, ast.IfExp)) or not statement.lineno < node.lineno < self._end(call):
                    continue
                if not self._decides_between(node, outputs, call):
                    continue
                if self._changing.changes(node.test, Site(call.module, call.scope, call.body, node)):
                    return f"{self._at(call, node.test)} decides which outputs of the model enter the loss"
        return ""

    def _at(self, call: Site, node: ast.AST) -> str:
        return at(self._program, call.module, node)

    def dropped_inside(self) -> str:
        """An output of a part that the model which calls the part drops: ``mean, _ = self.encoder(x)``."""
        for body, scope in self._program.bodies:
            if not self._program.is_model_code(body):
                continue
            for node in self._program.nodes_of(body):
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                    if self._program.called_models(node.value, scope):
                        dropped = self._unread_output(Site(scope.module, scope, body, node.value), node)
                        if dropped:
                            return dropped
        return ""

    def _unread_output(self, call: Site, statement: ast.Assign) -> str:
        """An output that a part of the model makes for itself alone, and that nothing reads."""
        read = {
            node.id
            for node in self._program.nodes_of(call.body)
            if isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and blocks.choice_between(call.module, call.node, node) is None
        }
        for target in statement.targets:
            if not isinstance(target, ast.Tuple):
                continue
            for index, element in enumerate(target.elts):
                if isinstance(element, ast.Name) and element.id not in read and self._made_apart(call, index):
                    return f"{self._at(call, element)}, which a part of the model makes, enters no loss"
        return ""

    def _unread_item(self, call: Site) -> str:
        """An item of a tuple or a dictionary that nothing reads: the second one of ``model(x)[0]``."""
        read = self._read_items(call)
        for key in sorted(self._given_items(call) - read, key=repr) if read else ():
            if self._made_apart(call, key):
                return f"output {key!r} of {self._at(call, call.node)}, which a part of the model makes, enters no loss"
        return ""

    def _read_items(self, call: Site) -> set[object]:
        """The items of a result that are read, by literals; none where more of it may be."""
        assert isinstance(call.node, ast.Call)
        reads = blocks.around_reads(call.module, call.node, self._program.nodes_of(call.body))
        keys = {literal(node.slice) if isinstance(node, ast.Subscript) else ... for node in reads}
        return set() if ... in keys else keys

    def _given_items(self, call: Site) -> set[object]:
        """The keys or places of all that a forward pass gives."""
        assert isinstance(call.node, ast.Call)
        found: set[object] = set()
        for info in self._program.flow.callees(call.node):
            for given in info.returns:
                if isinstance(given, ast.Tuple):
                    found |= set(range(len(given.elts)))
                elif isinstance(given, ast.Dict):
                    found |= {literal(key) for key in given.keys}
        return found - {...}

    def _read_at_times(self, call: Site, statement: ast.Assign) -> str:
        """An output that the loss is made of under a condition only: ``if args.task > 0: old = out``.

        An option that never holds is no better: what makes the output gets no gradient in any step.
        """
        entering = self.entering(call)
        for element in (item for target in statement.targets if isinstance(target, ast.Tuple) for item in target.elts):
            reads = [node for node in entering if isinstance(element, ast.Name) and node.id == element.id]
            reads = [node for node in reads if statement.lineno < node.lineno]
            tests = [test for node in reads if (test := _test_above(node, reads, call)) is not None]
            if tests and len(tests) == len(reads):
                return f"{self._at(call, tests[0])} decides which outputs of the model enter the loss"
        return ""

    def entering(self, call: Site) -> list[ast.Name]:
        """The reads, in the body of the call, of what the loss there is made of, or what the body returns."""
        nodes = list(self._program.nodes_of(call.body))
        backwards = [site for site in self._precision.backwards if site.body is call.body]
        ends = {site.statement for site in backwards} if backwards else {n for n in nodes if isinstance(n, ast.Return)}
        made = {path for site in backwards for path in blocks.reads(site.loss)}
        made |= {path for end in ends if not backwards for path in blocks.reads(end)}
        last = max((call.module.end(site.statement) for site in backwards), default=None)
        written = [
            (blocks.writes(node), node)
            for node in nodes
            if isinstance(node, (*_ASSIGNING, ast.Expr)) and (last is None or call.module.start(node) <= last)
        ]
        before: set[str] = set()
        while made != before:
            before = made
            made = made.union(*(blocks.reads(node) for paths, node in written if paths & before))
        reads = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
        return [
            node
            for node in reads
            if last is None or call.module.start(node) <= last
            if (around := blocks.statement_of(call.module, node)) in ends or blocks.writes(around) & made
        ]

    def _picked_loss(self, call: Site, statement: ast.Assign) -> ast.Subscript | None:
        """``losses[step % 2]``, where the list is written out."""
        lists = {
            path
            for node in self._program.nodes_of(call.body)
            if isinstance(node, ast.Assign) and isinstance(node.value, (ast.List, ast.Tuple, ast.Dict))
            if any(isinstance(part, (ast.Name, ast.Call)) for part in walk(node.value))  # no numbers alone
            for target in node.targets
            if (path := blocks.path_of(target)) is not None
        }
        for node in self._program.nodes_of(call.body):
            if isinstance(node, ast.Subscript) and statement.lineno < node.lineno <= self._end(call):
                if blocks.path_of(node.value) in lists and isinstance(node.ctx, ast.Load):
                    if self._goes_through(node, call, statement):
                        continue
                    if self._changing.changes(node.slice, Site(call.module, call.scope, call.body, node)):
                        return node
        return None

    def _goes_through(self, node: ast.Subscript, call: Site, statement: ast.Assign) -> bool:
        """Whether a loop of the step comes to each item in turn: ``sum(weights[k] * losses[k] for k in range(3))``."""
        left = set(blocks.reads(node.slice))
        found = False
        for parent in call.module.ancestors(node):
            if parent is statement or getattr(parent, "lineno", 0) <= statement.lineno:
                break
            bound: set[str] = set()
            gone_through: list[ast.expr] = []
            if isinstance(parent, COMPREHENSIONS) and not any(item.ifs for item in parent.generators):
                bound, gone_through = own_variables(parent), [item.iter for item in parent.generators]
            elif isinstance(parent, (ast.For, ast.AsyncFor)):
                bound, gone_through = blocks.writes_target(parent), [parent.iter]
            site = Site(call.module, call.scope, call.body, parent)
            if left & bound and not any(self._changing.changes(item, site) for item in gone_through):
                left -= bound
                found = True
        return found and not left

    def _made_apart(self, call: Site, key: object) -> bool:
        """Whether an element of what forward gives is made by a part whose result goes nowhere else."""
        assert isinstance(call.node, ast.Call)
        found = False
        for info in self._program.flow.callees(call.node):
            for given in info.returns:
                made = item_of(given, key)
                if made is None:
                    continue  # of evaluation, say: here the result is unpacked
                found = True
                if isinstance(made, ast.Name):
                    only = self._only_read_as(made, info.node, given)
                    if only is None:
                        return False
                    made = only
                if not (isinstance(made, ast.Call) and self._uses_part(made)):
                    return False
        return found

    def _only_read_as(self, name: ast.Name, function: ast.AST, given: ast.expr) -> ast.expr | None:
        """What a variable holds where a function returns it, if nothing else reads that value.

        A name may hold other values before: ``out = self.conv(x)``, and ``out = self.head(out)`` further below.
        """
        nodes = self._program.nodes_of(function)
        uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == name.id]
        giving = [
            node
            for node in nodes
            if isinstance(node, ast.Assign) and name.id in {blocks.path_of(item) for item in node.targets}
        ]
        if len(giving) == 1:
            return giving[0].value if sum(isinstance(node.ctx, ast.Load) for node in uses) == 1 else None
        located = self._program.locate(given)
        if located is None:
            return None
        where = blocks.place(located[1].module, blocks.statement_of(located[1].module, given))
        last = max((i for i, item in enumerate(where.suite[: where.index]) if item in giving), default=None)
        if last is None:
            return None
        below = [node for item in where.suite[last + 1 :] for node in walk(item)]
        inner = [node for node in uses if node in below]
        statement = where.suite[last]
        assert isinstance(statement, ast.Assign)
        return statement.value if inner == [name] else None

    def _decides_between(self, node: ast.If | ast.IfExp, outputs: set[str], call: Site) -> bool:
        loop = blocks.loop_around(call.module, call.node)
        if loop is not None and loop not in set(blocks.enclosing(call.module, node)):
            return False
        losses = {path for site in self._precision.backwards for path in blocks.reads(site.loss)}
        if isinstance(node, ast.IfExp):
            statement = blocks.statement_of(call.module, node)
            if not blocks.writes(statement) & losses:
                return False
            return _reads(node.body) & outputs != _reads(node.orelse) & outputs
        suites = [node.body, node.orelse]
        if not any(blocks.writes(item) & losses for suite in suites for item in suite):
            return False
        read = [{path for item in suite for path in _reads(item)} & outputs for suite in suites]
        return read[0] != read[1]

    def _end(self, call: Site) -> int:
        """The line of the backward pass, where it stands in the body of the call."""
        lines = [site.line for site in self._precision.backwards if site.body is call.body and site.line >= call.line]
        return min(lines, default=call.line)

    def _items(self, statement: ast.Assign, call: Site) -> set[str]:
        """The items of one variable that are read by their names: ``out["aux"]``, ``out[1]``, ``out.aux``."""
        names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
        items = (item for part in blocks.own_parts(call.body) for item in _reads(part))
        return {item for item in items if "|" in item and item.partition("|")[0] in names}


def _test_above(read: ast.Name, others: list[ast.Name], call: Site) -> ast.expr | None:
    """The condition that a read stands under, below the model's call, where the other branch has no such read."""
    around = set(blocks.enclosing(call.module, call.node))
    below: ast.AST = read
    for parent in call.module.ancestors(read):
        if parent in around or parent is call.body:
            return None
        if isinstance(parent, (ast.If, ast.IfExp)) and below is not parent.test:
            within = set(walk(parent)) - set(walk(parent.test)) - set(walk(below))
            if isinstance(parent, ast.If):
                within = {item for item in others if blocks.choice_between(call.module, read, item) is parent}
            if within.isdisjoint(others):
                return parent.test
        below = parent
    return None


def item_of(given: ast.expr, key: object) -> ast.expr | None:
    """An element of a tuple or a list that is written out, or an entry of a dictionary."""
    if isinstance(given, (ast.Tuple, ast.List)) and isinstance(key, int):
        return given.elts[key] if key < len(given.elts) else None
    if isinstance(given, ast.Dict):
        return next((item for name, item in zip(given.keys, given.values, strict=True) if literal(name) == key), None)
    return None


def _reads(node: ast.AST) -> set[str]:
    """The variables that a node reads, and the items of variables that it reads by a literal: ``out|'aux'``."""
    items = set()
    called = {part.func for part in walk(node) if isinstance(part, ast.Call)}
    for part in walk(node):
        if (
            isinstance(part, ast.Subscript)
            and isinstance(part.value, ast.Name)
            and isinstance(part.slice, ast.Constant)
        ):
            items.add(f"{part.value.id}|{part.slice.value!r}")
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part not in called:
            items.add(f"{part.value.id}|{part.attr}")
    return items | blocks.reads(node)


def _elements(target: ast.expr) -> Iterator[str]:
    """The variables of an unpacked result."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            path = blocks.path_of(element)
            if path is not None:
                yield path
