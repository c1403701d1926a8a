"""What a round of an evaluation leaves behind: sums, lists, and objects that average; anything else is not understood.

Three kinds of values are a process's own while the loop runs: what is added up, the number of the round, and the clock.
They may be shown, and nothing else: no result may rest on them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from amp_rules.plan.evaluation.assignments import Unclear, loaded, names_in, targets_of
from amp_rules.plan.evaluation.beginnings import Beginnings
from amp_rules.plan.evaluation.calls import Calls
from amp_rules.plan.evaluation.making import root_of
from amp_rules.plan.evaluation.meters import Meter, meter_of
from amp_rules.plan.evaluation.rounds import Round
from amp_rules.plan.training_loops import added_to, variable
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.torch import evaluating


@dataclass
class Findings:
    """What is put together behind a loop, by the variables that hold it, and where the loop fills them.

    Attributes:
        sums: what is added to.
        lists: what is appended to.
        meters: objects that average.
        synchronised: metrics of a library that adds up the states of all processes itself.
        left: variables that the loop assigns, and that hold what one batch gave or how far a process was.
    """

    sums: dict[str, ast.AST] = field(default_factory=dict)
    lists: dict[str, ast.AST] = field(default_factory=dict)
    meters: dict[str, Meter] = field(default_factory=dict)
    synchronised: dict[str, ast.AST] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)


class Body(Round):
    """Reads one loop.

    Args:
        program: the program.
        calls: what its calls leave behind.
        loop: the loop.
        counters: variables of its head that count the rounds.
    """

    def __init__(self, program: Program, calls: Calls, loop: Site, counters: set[str]) -> None:
        super().__init__(program, loop, counters)
        self._calls = calls
        self._adding: dict[str, ast.AST] = {}
        self._growing: dict[str, ast.AST] = {}
        self._meter_nodes: dict[str, ast.AST] = {}
        self.found = Findings()

    def read(self) -> Findings:
        """What the loop leaves behind.

        Raises:
            Unclear: something of it was not understood.
        """
        for _ in range(2):  # what is read before it is assigned is of the round before
            self._adding, self._growing = {}, {}
            self.found = Findings()
            self._run(self._loop.body, names_in(self._loop.target), in_loop=False)
        beginnings = Beginnings(self._program, self._site)
        for path, node in self._adding.items():
            kind = beginnings.kind_of(path, node)
            base = path.partition("[")[0]
            if kind == "list":
                if not isinstance(node, ast.AugAssign) or path != base or _is_by_item(node):
                    raise Unclear(node, f"it is not known what `{path}` holds")
                self.found.lists[path] = node
            else:
                self.found.sums[base] = node
        for path, node in self._growing.items():
            if beginnings.kind_of(path, node) != "list":
                raise Unclear(node, f"`{path}` is not a list that is empty before the loop")
            self.found.lists[path] = node
        for path, meter in self.found.meters.items():
            beginnings.begins_meter(path, meter, self._meter_nodes[path])
        both = set(self.found.sums) & {*self.found.lists, *self.found.meters}
        if both:
            raise Unclear(self._loop, f"it is not known what `{min(both)}` holds")
        shown = {name for name in self._written if self._is_clock_variable(name)} | self._clocks
        self.found.left = self._written - shown - set(self.found.sums) - set(self.found.lists)
        return self.found

    # ---- statements ----------------------------------------------------------------------------------------

    def _run(self, statements: Iterable[ast.stmt], assigned: set[str], *, in_loop: bool) -> set[str] | None:
        current: set[str] | None = assigned
        for item in statements:
            if current is None:
                return None
            current = self._one(item, current, in_loop)
        return current

    def _one(self, item: ast.stmt, assigned: set[str], in_loop: bool) -> set[str] | None:
        if isinstance(item, (ast.Pass, ast.Import, ast.ImportFrom)):
            return assigned
        if isinstance(item, ast.Continue) or (isinstance(item, ast.Break) and in_loop):
            return None
        if isinstance(item, (ast.Break, ast.Return)):
            word = "break" if isinstance(item, ast.Break) else "return"
            raise Unclear(item, f"`{word}` ends the evaluation early")
        if isinstance(item, ast.Raise):
            return None
        if isinstance(item, ast.Delete):
            gone = {part.id for target in item.targets for part in targets_of(target) if isinstance(part, ast.Name)}
            if gone <= assigned and all(isinstance(target, ast.Name) for target in item.targets):
                return assigned - gone
        if isinstance(item, ast.Assert):
            self._expression(item.test, assigned)
            return assigned
        if isinstance(item, ast.Assign):
            return self._assign(item, assigned)
        if isinstance(item, ast.AnnAssign) and item.value is not None:
            is_own = self._expression(item.value, assigned)
            return assigned | self._store(item.target, item, assigned, is_own)
        if isinstance(item, ast.AugAssign):
            return self._augment(item, assigned)
        if isinstance(item, ast.Expr):
            self._statement(item, assigned)
            return assigned
        if isinstance(item, ast.If):
            return self._condition(item, assigned, in_loop)
        if isinstance(item, ast.For):
            if self._expression(item.iter, assigned):
                raise Unclear(item, f"`{self._text(item.iter)}` depends on what one process has counted")
            inner = assigned | self._store(item.target, item, assigned, False)
            self._run(item.body, set(inner), in_loop=True)
            return self._run(item.orelse, assigned, in_loop=in_loop)
        if isinstance(item, ast.With):
            for part in item.items:
                self._expression(part.context_expr, assigned)
                if part.optional_vars is not None:
                    assigned = assigned | self._store(part.optional_vars, item, assigned, False)
            return self._run(item.body, assigned, in_loop=in_loop)
        raise Unclear(item, f"`{self._text(item).splitlines()[0]}` was not understood")

    def _condition(self, item: ast.If, assigned: set[str], in_loop: bool) -> set[str] | None:
        is_own = self._expression(item.test, assigned)
        if is_own:
            for inner in [*item.body, *item.orelse]:
                if isinstance(inner, (ast.Break, ast.Return)) and not in_loop:
                    self._one(inner, assigned, in_loop)
                if not self._only_shows(inner):
                    raise Unclear(item, f"`{self._text(item.test)}` depends on what one process has counted")
            return assigned
        ends = [
            end
            for suite in (item.body, item.orelse)
            if (end := self._run(suite, set(assigned), in_loop=in_loop)) is not None
        ]
        return set.intersection(*ends) if ends else None

    def _only_shows(self, item: ast.stmt) -> bool:
        """Whether a statement shows what a process has so far, or prepares it for that."""
        if isinstance(item, ast.Pass):
            return True
        if isinstance(item, ast.Expr) and isinstance(item.value, ast.Call):
            return self._calls.shows(item.value, self._site.scope) is not None
        if isinstance(item, ast.Assign) and all(isinstance(target, ast.Name) for target in item.targets):
            names = {target.id for target in item.targets if isinstance(target, ast.Name)}
            self._private |= names
            return not any(
                self._obstacle(node) for node in ast.walk(item.value) if isinstance(node, ast.Call)
            ) and not (names & set(self._adding))
        return isinstance(item, ast.If) and all(map(self._only_shows, [*item.body, *item.orelse]))

    def _assign(self, item: ast.Assign, assigned: set[str]) -> set[str]:
        sums = [path for path in added_to(item) if path.partition("[")[0] not in assigned]
        if sums:
            if (
                len(item.targets) != 1
                or isinstance(item.targets[0], ast.Tuple)
                or not isinstance(item.value, ast.BinOp)
            ):
                raise Unclear(item, f"it is not known what `{sums[0]}` holds")
            added = item.value.right if variable(item.value.left) == sums[0] else item.value.left
            self._add(sums[0], added, item, assigned)
            return assigned
        is_own = self._expression(item.value, assigned)
        found: set[str] = set()
        for target in item.targets:
            found |= self._store(target, item, assigned, is_own)
        return assigned | found

    def _store(self, target: ast.expr, item: ast.stmt, assigned: set[str], is_own: bool) -> set[str]:
        found: set[str] = set()
        for part in targets_of(target):
            if isinstance(part, ast.Name):
                if part.id in self._adding or part.id in self._growing:
                    raise Unclear(item, f"`{part.id}` is reset within the loop")
                self._private = self._private | {part.id} if is_own else self._private - {part.id}
                found.add(part.id)
            else:
                root = root_of(part)
                if root is None or root not in assigned or root not in self._fresh or is_own:
                    raise Unclear(item, f"`{self._text(part)}` is written")
        return found

    def _augment(self, item: ast.AugAssign, assigned: set[str]) -> set[str]:
        base = variable(item.target)
        by_item = isinstance(item.target, ast.Subscript)
        if by_item and isinstance(item.target, ast.Subscript):
            if self._expression(item.target.slice, assigned):
                raise Unclear(item, f"`{self._text(item.target)}` depends on what one process has counted")
            base = base if base is not None else variable(item.target.value)
        root = root_of(item.target)
        if root is not None and root in assigned and root in self._fresh | self._private:
            is_own = self._expression(item.value, assigned)
            if is_own and root not in self._private:
                raise Unclear(item, f"`{root}` depends on what one process has counted")
            return assigned
        if base is None or not isinstance(item.op, (ast.Add, ast.Sub)):
            raise Unclear(item, f"`{self._text(item.target)}` is neither a sum nor a list")
        if base.partition("[")[0] in assigned:
            raise Unclear(item, f"it is not known what `{base}` holds")
        self._add(base, item.value, item, assigned)
        return assigned

    def _add(self, path: str, value: ast.expr, item: ast.stmt, assigned: set[str]) -> None:
        if self._expression(value, assigned):
            if self._is_time(value):
                self._clocks.add(path.partition("[")[0])
                return
            raise Unclear(item, f"what is added to `{path}` depends on what one process has counted")
        if path.partition("[")[0] in self._clocks:
            raise Unclear(item, f"it is not known what `{path}` holds")
        self._adding.setdefault(path, item)

    # ---- calls as statements -------------------------------------------------------------------------------

    def _statement(self, item: ast.Expr, assigned: set[str]) -> None:
        call = item.value
        if isinstance(call, ast.Constant):
            return
        if not isinstance(call, ast.Call):
            self._expression(call, assigned)
            return
        if isinstance(call.func, ast.Attribute) and self._grows(call, call.func, item, assigned):
            return
        if self._is_synchronised(call, assigned):
            return
        shown = self._calls.shows(call, self._site.scope)
        if shown is None:
            self._expression(call, assigned)
        elif shown == "line" and not self._is_now_and_then(item):
            raise Unclear(item, f"`{self._text(call.func)}` shows each batch")

    def _grows(self, call: ast.Call, function: ast.Attribute, item: ast.Expr, assigned: set[str]) -> bool:
        path = variable(function.value)
        root = root_of(function.value)
        if path is None or (root in assigned and root in self._fresh):
            return False
        given = [*call.args, *(word.value for word in call.keywords)]
        values = self._program.flow.values(function.value, self._site.scope)
        classes = {value.ref for value in values if value.kind == "instance"}
        meter = meter_of(next(iter(classes)), function.attr) if len(classes) == 1 and len(values) == 1 else None
        if meter is not None:
            owns = [self._expression(value, assigned) for value in given]
            if any(owns):
                if not all(self._is_time(value) for value, is_own in zip(given, owns, strict=True) if is_own):
                    raise Unclear(item, f"what `{path}` is given depends on what one process has counted")
                self._clocks.add(path)
            else:
                self.found.meters[path] = meter
                self._private.add(path)
                self._meter_nodes[path] = item
            return True
        if function.attr in evaluating.GROWING_METHODS and len(given) == 1 and path.partition("[")[0] == path:
            if self._expression(given[0], assigned):
                raise Unclear(item, f"what `{path}` is given depends on what one process has counted")
            self._growing[path] = item
            return True
        return False

    def _is_synchronised(self, call: ast.Call, assigned: set[str]) -> bool:
        """Whether a metric is given a batch that sums its states over the processes itself."""
        owner = call.func
        if isinstance(owner, ast.Attribute):
            if owner.attr != "update":
                return False
            owner = owner.value
        values = self._program.flow.values(owner, self._site.scope) if isinstance(owner, ast.expr) else set()
        if not values or not all(value.name.startswith(evaluating.SYNCHRONISED_METRICS) for value in values):
            return False
        for given in [*call.args, *(word.value for word in call.keywords)]:
            if self._expression(given, assigned):
                raise Unclear(call, f"what `{self._text(owner)}` is given depends on what one process has counted")
        self.found.synchronised.setdefault(self._text(owner), call)
        return True

    def _is_now_and_then(self, item: ast.stmt) -> bool:
        """Whether a line is shown every so many rounds, as ``if i % 10 == 0:`` says."""
        for parent in blocks.enclosing(self._site.module, item):
            if parent is self._loop:
                return False
            if isinstance(parent, ast.If) and self._rests_on_own(parent.test):
                if any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) for part in ast.walk(parent.test)):
                    return True
        return False

    # ---- expressions ---------------------------------------------------------------------------------------

    def _expression(self, node: ast.AST, assigned: set[str]) -> bool:
        """Whether an expression rests on what is a process's own; all its calls must compute and nothing else."""
        for part in ast.walk(node):
            if isinstance(part, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
                raise Unclear(part, f"`{self._text(part)}` was not understood")
            if isinstance(part, ast.Call) and (why := self._obstacle(part)) is not None:
                raise Unclear(part, why)
        for name in loaded(node):
            if name.id in self._written - assigned and name.id not in self._private | self._clocks:
                if not self._is_clock_variable(name.id):
                    raise Unclear(name, f"`{name.id}` is carried from one batch to the next")
        return self._rests_on_own(node)

    def _obstacle(self, call: ast.Call) -> str | None:
        return self._calls.obstacle(call, self._site.scope, self._fresh)


def _is_by_item(node: ast.AST) -> bool:
    return isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript)
