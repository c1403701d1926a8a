"""Numbers of steps that a script works out of the length of its dataset: each process makes a share of them.

``len(train_set) // batch_size`` is as many steps as one process makes of an epoch. With several the schedule that it is
for would not come to its end.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from amp_rules.flow.cells import CellKey
from amp_rules.flow.values import Value
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.epoch_schedules import EpochSchedules
from amp_rules.plan.full_batches import FullBatches
from amp_rules.plan.rebindings import Rebinding
from amp_rules.plan.training_loops import SHOWING, TrainingLoop, variable
from amp_rules.plan.whole_lengths import WholeLengths
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.loaders import Loaders
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.sliced_batches import place_of
from amp_rules.roles.unread import is_never_read
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import values_given, walk
from amp_rules.torch.optimizers import EXACT_SCHEDULES, is_scheduler_name
from amp_rules.torch.writers import SAVERS

_MAX_VARIABLES = 4
"""Variables through which a number is followed to a training loop."""

_RECIPE = "count the steps by `len(loader)` of the training loader, which is that of a rank's share"


@dataclass(frozen=True)
class StepCount(Site):
    """An expression for a number of steps.

    Attributes:
        loader: an expression for the loader at that place; None where there is none, and the number can be divided.
        what: what the number counts; ``full batches`` is a number of samples that full batches are made of.
    """

    loader: str | None
    what: str


class ShareSteps:
    """Finds the numbers of steps, and those that cannot be made a share of.

    Attributes:
        counts: the numbers that are made a share.
        reasons: those of which a schedule needs the share, and that cannot be made one.
        unclear: those that stay, with what is to be known of them.
    """

    def __init__(
        self,
        program: Program,
        lengths: WholeLengths,
        loops: list[TrainingLoop],
        data: TrainingData,
        shared_out: tuple[list[Site], list[Rebinding]],
    ) -> None:
        self.program = program
        self.lengths = lengths
        self._data = data
        self._shared_out = shared_out
        self._full = FullBatches(program, lengths, data)
        self.loaders = Loaders(program)
        self.epochs = EpochSchedules(program, data)
        self.counts: list[StepCount] = []
        self.reasons: list[Declined] = []
        self.unclear: list[tuple[Site, str]] = []
        if lengths.loaders or lengths.slices:
            for node, body, scope in program.nodes():
                if self._is_quotient(node, scope):
                    self._decide(Site(scope.module, scope, body, node))
                elif self._is_unclear(node, scope):
                    self._tell(Site(scope.module, scope, body, node), loops)
            for loop in loops:
                if not loop.evaluates:
                    self.counts.extend(self._progress(loop))
            self.counts.extend(self._of_whole_loaders())
            self.reasons.extend(self._unknown_schedules())
            self.reasons.extend(self._of_epochs(site) for site in self.epochs.mixed)
            self.counts = [count for count in self.counts if not self._is_beside_a_place(count)]

    # ---- finding -------------------------------------------------------------------------------------------------

    def _is_quotient(self, node: ast.AST, scope: Scope) -> bool:
        return (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, (ast.Div, ast.FloorDiv))
            and self.lengths.count(node.left, scope) == "samples"
            and self.lengths.is_batch_size(node.right, scope)
        )

    def _is_beside_a_place(self, count: StepCount) -> bool:
        """Whether an expression reads a place in all of the data: ``i + size > len(x)`` of ``range(0, len(x), size)``.

        A shared range gives each process some of the same places, up to the end of the whole data.
        """
        expression: ast.AST = count.node
        while isinstance(parent := count.module.parents.get(expression), ast.expr):
            expression = parent
        return any(
            isinstance(node, ast.Name) and self.program.flow.key(node, count.scope) in self._places
            for node in walk(expression)
        )

    @cached_property
    def _places(self) -> set[CellKey]:
        """The variables that ranges over places in the data set."""
        found: set[CellKey] = set()
        for item in self.lengths.slices:
            around = item.scope.module.ancestors(item.range) if item.range is not None else ()
            loop = next((node for node in around if isinstance(node, ast.For)), None)
            place = place_of(loop) if loop is not None else None
            key = self.program.flow.key(place, item.scope) if place is not None else None
            if key is not None:
                found.add(key)
        return found

    @cached_property
    def _in_ranges(self) -> set[ast.AST]:
        """What the ranges are made of that are shared out themselves: their ends stay those of the whole data."""
        found: set[ast.AST] = set()
        keys: set[CellKey] = set()
        given: list[tuple[ast.expr, Scope]] = [
            (item.range, item.scope) for item in self.lengths.slices if item.range is not None
        ]
        while given:
            expression, scope = given.pop()
            for node in walk(expression):
                found.add(node)
                key = self.program.flow.key(node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else None
                if key is not None and key not in keys:
                    keys.add(key)
                    given.extend(self.lengths.assigned.get(key, ()))
        return found

    def _is_unclear(self, node: ast.AST, scope: Scope) -> bool:
        """Whether the length of the dataset is divided by something that may be a size of batches."""
        return (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, (ast.Div, ast.FloorDiv))
            and self.lengths.count(node.left, scope) == "samples"
            and self.lengths.count(node.right, scope) is None
            and not self.lengths.measures(node.right, scope)
        )

    def _decide(self, site: Site) -> None:
        assert isinstance(site.node, ast.expr)
        if site.node in self._in_ranges:
            return
        whole = self._whole(site.node, site)
        if not self._counts_steps(Site(site.module, site.scope, site.body, whole)) or is_never_read(self.program, site):
            return
        if self.epochs.need(Site(site.module, site.scope, site.body, whole)):
            return
        if self._is_of_several(site):
            text = "is worked out for several datasets, of which each process has a share of one: its steps are one Nth"
            self.unclear.append((site, text))
            return
        loader = self._loader_at(site)
        assert isinstance(site.node, ast.BinOp)
        if self._leaves_out(site, site.node.left, whole, loader):
            return
        if loader is None and not self._divides_evenly(site, whole) and self._must_be_exact:
            self.reasons.append(self._declined(site, whole))
            return
        self.counts.append(StepCount(site.module, site.scope, site.body, whole, loader, "steps"))

    def _leaves_out(self, site: Site, samples: ast.expr, number: ast.expr, loader: str | None) -> bool:
        """Whether a number keeps out a last batch which is not full: it is made of a rank's samples, or declined."""
        limit = self._full.limits(Site(site.module, site.scope, site.body, number))
        counted = self._full.samples(samples, site) if limit is not None else None
        if counted is not None and loader is not None:
            self.counts.append(StepCount(site.module, site.scope, site.body, counted, loader, "full batches"))
            return True
        if limit == "guard":
            text = f"`{site.module.text(number)}` keeps the last batch out where it is not full"
            self.reasons.append(
                declining.decline(
                    declining.HAND_BATCHES,
                    site.module,
                    number,
                    f"{text}; each process has other batches, and how many samples they are made of is not certain",
                    "give the DataLoader `drop_last=True`, and iterate over it to its end",
                )
            )
        return limit == "guard"

    def _whole(self, node: ast.expr, site: Site) -> ast.expr:
        """The number that a quotient is made into: with the rounding around it."""
        found: ast.AST = node
        while True:
            parent = site.module.parents[found]
            rounded = isinstance(parent, ast.Call) and found in parent.args and self.lengths.keeps(parent, site.scope)
            other = (parent.right if parent.left is found else parent.left) if isinstance(parent, ast.BinOp) else None
            added = (
                isinstance(parent, ast.BinOp)
                and isinstance(parent.op, (ast.Add, ast.Sub))
                and isinstance(other, ast.Constant)
            )
            divided = (
                isinstance(parent, ast.BinOp)
                and isinstance(parent.op, (ast.Div, ast.FloorDiv))
                and parent.left is found
                and other is not None
                and self.lengths.is_batch_size(other, site.scope)
            )
            if not (rounded or added or divided or isinstance(parent, ast.UnaryOp)):
                assert isinstance(found, ast.expr)
                return found
            found = parent

    def _is_of_several(self, site: Site) -> bool:
        """Whether a function's parameter is the training data, or its length, for some callers and not for others."""
        info = self.program.function_of(site.body)
        if info is None or not isinstance(site.node, ast.BinOp):
            return False
        for part in walk(site.node.left):
            if isinstance(part, ast.Name) and part.id in info.parameters:
                key = self.program.flow.key(part, site.scope)
                given = self.lengths.assigned.get(key, []) if key is not None else []
                counted = [self.lengths.is_about(value, scope) for value, scope in given]
                if any(counted) and not all(counted):
                    return True
        return False

    def _tell(self, site: Site, loops: list[TrainingLoop]) -> None:
        """Note a number that a training loop uses, and of which it is not known whether it counts steps."""
        if self._counts_steps(site) and self._is_used(site, loops):
            text = "may count the steps of all processes together: each makes one Nth of them"
            self.unclear.append((site, text))

    def _is_used(self, site: Site, loops: list[TrainingLoop]) -> bool:
        """Whether a training loop reads the number, or the variables that it is given to, but to cut the data by."""
        inner = {node for loop in loops if not loop.evaluates for node in loop.inner}
        if site.node in inner:
            return not _is_in_slice(site.module, site.node)
        keys: set[CellKey | None] = set()
        for _ in range(_MAX_VARIABLES):
            before = len(keys)
            for key, given in self.lengths.assigned.items():
                for value, scope in given:
                    parts = set(_outside_slices(value))
                    if site.node in parts or any(
                        self.program.flow.key(part, scope) in keys
                        for part in parts
                        if keys and isinstance(part, (ast.Name, ast.Attribute))
                    ):
                        keys.add(key)
            if len(keys) == before:
                break
        return any(
            isinstance(node, (ast.Name, ast.Attribute))
            and node in inner
            and self.program.flow.key(node, scope) in keys
            and not _is_in_slice(scope.module, node)
            for node, _, scope in self.program.nodes()
        )

    @cached_property
    def _must_be_exact(self) -> bool:
        """Whether a schedule raises when it is stepped more often than it is long."""
        return bool(self.program.calls_to(EXACT_SCHEDULES))

    def _divides_evenly(self, site: Site, whole: ast.expr) -> bool:
        """Whether a share of the number is as many steps as the share of the loader, without asking the loader."""
        assert isinstance(site.node, ast.BinOp)
        if whole is site.node and not isinstance(site.node.op, ast.FloorDiv):
            return False
        if any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult) for part in walk(site.node.left)):
            return False
        calls = [value.site for value in self.lengths.loaders if isinstance(value.site, ast.Call)]
        dropping = [item.value for call in calls for item in call.keywords if item.arg == "drop_last"]
        return all(isinstance(item, ast.Constant) and not item.value for item in dropping)

    def _declined(self, site: Site, whole: ast.expr) -> Declined:
        return declining.decline(
            declining.HAND_BATCHES,
            site.module,
            whole,
            f"`{site.module.text(whole)}` counts the steps of all processes together; each process makes only a share "
            "of them",
            _RECIPE,
        )

    def _of_epochs(self, site: Site) -> Declined:
        """The reason for a number that a schedule needs whole, as it is stepped once an epoch, and others do not."""
        assert isinstance(site.node, ast.expr)
        text = site.module.text(site.node)
        return declining.decline(
            declining.HAND_BATCHES,
            site.module,
            site.node,
            f"`{text}` is used for a schedule that is stepped once an epoch, which needs the whole length, and for "
            "something else, which may need the length of a rank's share",
            "give the schedule its own number",
        )

    def _of_whole_loaders(self) -> Iterator[StepCount]:
        """Yield lengths, times a number of epochs, of a loader that is prepared only where a step takes its batches.

        One that is evaluated as well is whole everywhere else, so its length is that of all processes.
        """
        evaluated = {value for use in self._data.evaluated for value in use.values}
        both = {value for use in self._data.uses for value in use.values} & evaluated
        places = {use.body for use in (*self._data.uses, *self._data.evaluated)}
        for call, body, scope in self.program.calls() if both else ():
            if body in places or blocks.path_of(call.func) != "len" or len(call.args) != 1:
                continue
            parent = scope.module.parents[call]
            if not (isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult)):
                continue
            site, loader = Site(scope.module, scope, body, call), call.args[0]
            if self.epochs.need(site) or not isinstance(loader, ast.Name):
                continue
            values = self.program.flow.values(loader, scope)
            if values and values <= both and not self._is_prepared(loader, site):
                yield StepCount(scope.module, scope, body, call, scope.module.text(loader), "steps")

    def _is_prepared(self, name: ast.Name, site: Site) -> bool:
        """Whether a variable holds a prepared loader at a place: what it is given is prepared, or it is given that.

        One function may make the loaders for training and for evaluation, which are one value.
        """
        sites, rebindings = self._shared_out
        wrapped = {item.node for item in sites}
        key = self.program.flow.key(name, site.scope)
        given = self.lengths.assigned.get(key, []) if key is not None else []
        if name in wrapped or (given and all(value in wrapped for value, _ in given)):
            return True
        return any(
            item.variable == name.id
            and site.body is blocks.body_of(item.module, item.statement)
            and site.module.start(name) > site.module.start(item.statement)
            for item in rebindings
        )

    # ---- within the loop -----------------------------------------------------------------------------------------

    def _progress(self, loop: TrainingLoop) -> Iterator[StepCount]:
        """Yield lengths of the whole dataset that a loop compares its own progress with, or shows beside it."""
        counted = {*loop.sums, *loop.counters}
        for node in loop.inner:
            if not isinstance(node, ast.expr) or self.lengths.count(node, loop.scope) != "samples":
                continue
            parent = loop.module.parents[node]
            if isinstance(parent, ast.expr) and self.lengths.count(parent, loop.scope) is not None:
                continue
            other = _beside(loop.module, node)
            if other is None or not any(variable(part) in counted for part in walk(other)):
                continue
            site = Site(loop.module, loop.scope, loop.body, node)
            loader = loop.module.text(loop.use.loader)
            if not self._leaves_out(site, node, node, loader):
                yield StepCount(loop.module, loop.scope, loop.body, node, loader, "samples")

    # ---- what it is for ------------------------------------------------------------------------------------------

    def _counts_steps(self, site: Site) -> bool:
        """Whether the number is used as one of steps: not to index the data, or to go over it by hand."""
        assert isinstance(site.node, ast.expr)
        if self._takes_data(site):
            return False
        statement = site.statement
        if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1) or _divides(site):
            return True
        key = self.program.flow.key(blocks.reading(statement.targets[0]), site.scope)
        for node, body, scope in self.program.nodes() if key is not None else ():
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                if self.program.flow.key(node, scope) == key and self._takes_data(
                    Site(scope.module, scope, body, node)
                ):
                    return False
        return True

    def _takes_data(self, site: Site) -> bool:
        child: ast.AST = site.node
        for parent in site.module.ancestors(site.node):
            if isinstance(parent, ast.stmt):
                return False
            if isinstance(parent, ast.Subscript) and child is parent.slice:
                return True
            if isinstance(parent, ast.Call):
                if parent in self._made_for_loaders:
                    return True
                names = self.program.callee_names(parent, site.scope)
                if "builtins.range" in names:
                    return not self._takes_batches(parent, site)
                if names & SAVERS:
                    return False
                if any(name.startswith(("torch.", "numpy.")) and not is_scheduler_name(name) for name in names):
                    if not self.lengths.keeps(parent, site.scope):
                        return True
            child = parent
        return False

    @cached_property
    def _made_for_loaders(self) -> set[ast.AST]:
        """The calls that make the training loaders, and what these get: a sampler draws for all processes together."""
        calls = {value.site for value in self.lengths.loaders if isinstance(value.site, ast.Call)}
        found: set[ast.AST] = set(calls)
        for call in calls:
            located = self.program.locate(call)
            for given in values_given(call) if located is not None else ():
                held = self.program.flow.values(given, located[1]) if located is not None else set()
                found |= {value.site for value in held if isinstance(value.site, ast.Call)}
        return found

    def _takes_batches(self, call: ast.Call, site: Site) -> bool:
        """Whether a loop over the range takes its batches from a loader that is shared out."""
        statement = blocks.statement_of(site.module, call)
        if not isinstance(statement, ast.For):
            return True
        inner = Site(site.module, site.scope, site.body, statement)
        return any(
            not self.lengths.loaders.isdisjoint(use.values)
            for item in statement.body
            for node in blocks.walk_own(item)
            for use in self.loaders.taken(node, inner)
        )

    def _unknown_schedules(self) -> Iterator[Declined]:
        """Yield schedules whose length comes of the dataset's in a way that is not understood."""
        for call, body, scope in self.program.calls():
            if not any(map(is_scheduler_name, self.program.callee_names(call, scope))) or call in self.epochs.calls:
                continue
            for given in [*call.args, *(item.value for item in call.keywords)]:
                count = self.lengths.count(given, scope)
                if count in ("unknown", "samples"):
                    yield self._declined(Site(scope.module, scope, body, given), given)

    # ---- the loader at a place -----------------------------------------------------------------------------------

    def _loader_at(self, site: Site) -> str | None:
        """An expression that holds the training loader where the number is worked out."""
        for node in walk(site.node):
            if isinstance(node, ast.Attribute) and self._is_training(node.value, site.scope):
                return site.module.text(node.value)
        return self._assigned_before(site) or self._parameter(site) or self._global(site)

    def _is_training(self, node: ast.expr, scope: Scope) -> bool:
        values = self.program.flow.values(node, scope)
        return bool(values) and values <= self.lengths.loaders and not self._stands_in(values)

    def _stands_in(self, values: set[Value]) -> bool:
        """Whether loaders are for evaluation, and are only trained on in the place of others: ``train = val``."""
        evaluated = {value for use in self._data.evaluated for value in use.values}
        if not values <= evaluated or self.lengths.loaders <= evaluated:
            return False
        return not any(use.values and use.values <= values for use in self._data.uses)

    def _assigned_before(self, site: Site) -> str | None:
        inner: ast.stmt = site.statement
        for parent in [*blocks.enclosing(site.module, inner), None]:
            where = blocks.place(site.module, inner)
            for item in reversed(where.suite[: where.index]):
                if (found := self._target(item, site.scope)) is not None:
                    return found
            if parent is None:
                return None
            inner = parent
        return None

    def _target(self, item: ast.stmt, scope: Scope) -> str | None:
        """The variable that a statement gives the training loader, in each branch if it has some."""
        if isinstance(item, ast.If):
            found = {self._last_target(branch, scope) for branch in (item.body, item.orelse)}
            return found.pop() if len(found) == 1 else None
        targets = item.targets if isinstance(item, ast.Assign) and self._gives_loader(item.value) else []
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, (ast.Name, ast.Attribute)) and self._is_training(blocks.reading(part), scope):
                    return blocks.path_of(part)
        return None

    def _last_target(self, branch: list[ast.stmt], scope: Scope) -> str | None:
        return next((found for item in reversed(branch) if (found := self._target(item, scope)) is not None), None)

    def _gives_loader(self, value: ast.expr) -> bool:
        """Whether an expression gives a loader itself, and not an iterator over it."""
        if not isinstance(value, ast.Call):
            return True
        return any(value is made.site for made in self.lengths.loaders) or bool(self.program.flow.callees(value))

    def _parameter(self, site: Site) -> str | None:
        info = self.program.function_of(site.body)
        for name in info.parameters if info is not None else ():
            assert info is not None
            values = self.program.flow.values(ast.Name(name, ast.Load()), site.scope)
            if values and values <= self.lengths.loaders:
                return name
        return None

    def _global(self, site: Site) -> str | None:
        """A variable of the file, for functions: what is read there is made before they run."""
        if not isinstance(site.body, FunctionNode):
            return None
        for item in site.module.tree.body:
            found = self._target(item, self.program.flow.scopes[site.module.tree])
            if found is not None and found not in _locals(site.body):
                return found
        return None


def _locals(function: ast.AST) -> set[str]:
    return {path for item in blocks.own_parts(function) for path in blocks.writes(item)} | {
        argument.arg for argument in ast.walk(function) if isinstance(argument, ast.arg)
    }


def _divides(site: Site) -> bool:
    """Whether something is divided by a number of steps, so that the variable which is given it holds no such number.

    ``first = saved["step"] // (len(data) // size) + 1``
    """
    parent = site.module.parents[site.node]
    is_quotient = isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Div, ast.FloorDiv, ast.Mod))
    return is_quotient and parent.right is site.node  # type: ignore[attr-defined]


def _is_in_slice(module: Module, node: ast.AST) -> bool:
    """Whether a number is how much of the data is cut out: ``data[i : i + size]``, whose end reads where it begins."""
    around = (parent for parent in module.ancestors(node) if isinstance(parent, ast.Slice))
    ends = ((item.lower, item.upper) for item in around)
    return any(lower and upper and blocks.reads(lower) <= blocks.reads(upper) for lower, upper in ends)


def _outside_slices(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of an expression that are not within the bounds of a slice: what is cut out is no number."""
    if not isinstance(node, ast.Slice):
        yield node
        for part in ast.iter_child_nodes(node):
            yield from _outside_slices(part)


def _beside(module: Module, node: ast.expr) -> ast.AST | None:
    """What a number is compared with, is divided by it, or is shown with it."""
    child: ast.AST = node
    for parent in module.ancestors(node):
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Div, ast.FloorDiv)):
            return parent.left if child is parent.right else None
        if isinstance(parent, (ast.Compare, ast.JoinedStr)) or (
            isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mod)
        ):
            return parent
        if isinstance(parent, ast.Call):
            return parent if getattr(parent.func, "attr", getattr(parent.func, "id", "")) in SHOWING else None
        if isinstance(parent, ast.stmt):
            return None
        child = parent
    return None


def covers(counts: list[StepCount], node: ast.AST) -> bool:
    """Whether some of the numbers stand in an expression."""
    inside = set(walk(node))
    return any(item.node in inside for item in counts)
