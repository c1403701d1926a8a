"""The statements that compute a loss."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from amp_rules.flow.values import CallSite, Value
from amp_rules.roles.branch_losses import computes_beside, only_rescales
from amp_rules.roles.given_computations import Given
from amp_rules.roles.gradient_paths import GradientPaths
from amp_rules.roles.losses_of_terms import callers_with_terms
from amp_rules.roles.prepared_models import PreparedModels
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward, Site, calling
from amp_rules.roles.statement_runs import StatementRun, outermost
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import leaves_function
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk

_GIVEN_BY_STEPS = 4
"""What an environment gives at least: a state, a reward, whether it is done, and what else is known of it."""


@dataclass
class _Wanted:
    """What is looked for on the way back from a loss.

    Attributes:
        all: paths that it is computed from.
        carrying: those through which a gradient can flow into it.
        left_loop: whether the way has left a loop, so that the latter alone count.
    """

    all: set[str]
    carrying: set[str]
    left_loop: bool

    def grow(self, read: set[str], flowing: set[str]) -> None:
        """Look for more."""
        self.all |= flowing if self.left_loop else read
        self.carrying |= flowing

    def leave_loop(self, made: set[str]) -> None:
        """Go on outside of the loop, without what each of its rounds makes anew."""
        self.left_loop = True
        self.carrying -= made
        self.all = set(self.carrying)


def _made_in_round(loop: ast.stmt, before: Sequence[ast.stmt]) -> set[str]:
    """The variables that a round gives a value before it reads them: what they held outside of the loop is gone."""
    made = {path for path in blocks.writes_target(loop) if "." not in path} if isinstance(loop, ast.For) else set()
    read: set[str] = set()
    for statement in before:
        read |= blocks.reads(statement)
        if isinstance(statement, ast.Assign):
            made |= {path for path in blocks.writes(statement) - read if path.isidentifier()}
    return made


class Regions:
    """Where autocast belongs.

    Attributes:
        given: computations that no run holds, since they are given to the call that runs the backward pass.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._gradients = GradientPaths(program)
        self._visited: set[tuple[ast.AST, frozenset[str], bool]] = set()
        self._marked: dict[ast.AST, tuple[Module, ast.stmt]] = {}
        self.given: dict[ast.AST, Given] = {}
        self._paths_of_losses: dict[ast.AST, set[str]] = {}

    def training(self, backwards: Iterable[Backward]) -> tuple[list[StatementRun], list[Backward]]:
        """Runs that compute the losses, and the backward passes for which no computation was found."""
        lost = []
        backwards = list(backwards)
        for site in backwards:
            self._visited = set()
            before, self._marked = self._marked, {}
            given_before, self.given = self.given, {}
            self._paths_of_losses.setdefault(site.body, set()).update(blocks.reads(site.loss))
            self._slice(site, self._read_by(site))
            if not self._is_computed(site):
                inner = [statement for module, statement in self._marked.values() if module is site.module]
                for caller in callers_with_terms(self.program, site, inner):
                    self._slice(calling(caller), blocks.reads(caller.call.func))
                if not self._is_computed(site):
                    lost.append(site)
            self._marked = {**before, **self._marked}
            self.given = {**given_before, **self.given}
        runs = self._runs()
        if not runs and not self.given and not self.program.unknown_steps:
            # Nothing is left that autocast could stand around, but for what the call itself computes. Where the step is
            # not known, that is the reason, and this would only follow from it.
            lost = [site for site in backwards if site in lost or not self.program.runs_model(site.loss)]
        return runs, lost

    def _is_computed(self, site: Backward) -> bool:
        """Whether what was found for a backward pass computes with a model."""
        nodes = [site.loss, *self._marked, *self.given]
        return any(self.program.runs_model(node) for node in nodes) or any(map(self._runs_prepared, nodes))

    @cached_property
    def _runs_prepared(self) -> Callable[[ast.AST], bool]:
        """Whether running a node runs a model of which it is known alone that the script prepares it."""
        prepared = PreparedModels(self.program)

        def runs(node: ast.AST) -> bool:
            located = self.program.locate(node) if isinstance(node, ast.Call) else None
            return located is not None and isinstance(node, ast.Call) and prepared.is_called(node, located[1])

        return self.program.closure(runs)

    def _read_by(self, site: Backward) -> set[str]:
        """The paths that the loss is read from, and what a comprehension around it takes it from."""
        paths = blocks.reads(site.loss)
        for parent in site.module.ancestors(site.node):
            if isinstance(parent, ast.stmt):
                break
            for generator in getattr(parent, "generators", ()):
                if blocks.touches({path for path in _targets(generator) if path is not None}, paths):
                    paths = paths | blocks.reads(generator.iter)
        return paths

    # ---- slicing -------------------------------------------------------------------------------------------

    def _slice(self, site: Site, paths: set[str], left_loop: bool = False) -> None:
        """Mark the statements before ``site`` that compute ``paths``, in callers and other methods too.

        Within the loop that holds the site, all that the loss is computed from counts: targets that a teacher computes
        belong into the region although no gradient flows through them. Outside of it (``left_loop``) lies what is done
        once: only what a gradient can flow through counts there, not the numbers, modules and settings of the step.
        """
        key = (site.node, frozenset(paths), left_loop)
        if key in self._visited or len(self._visited) > 200:
            return
        self._visited.add(key)
        wanted = _Wanted(set(paths), set(paths), left_loop)
        statement: ast.AST = site.statement
        module = site.module
        while True:
            where = blocks.place(module, statement)  # type: ignore[arg-type]
            for previous in reversed(where.suite[: where.index]):
                self._visit(module, previous, wanted)
            parent = where.parent
            if isinstance(parent, (ast.ExceptHandler, getattr(ast, "match_case", ast.ExceptHandler))):
                parent = module.parents[parent]
            if isinstance(parent, (blocks.BODIES, ast.ClassDef)) or not isinstance(parent, ast.stmt):
                break
            if isinstance(parent, (ast.For, ast.AsyncFor)) and blocks.touches(blocks.writes_target(parent), wanted.all):
                wanted.grow(blocks.reads(parent.iter), self._gradients.reads(parent.iter))
            if isinstance(parent, (ast.With, ast.AsyncWith)):
                for given in self._handed_through(parent, wanted.all):
                    wanted.grow(blocks.reads(given), self._gradients.reads(given))
            if isinstance(parent, blocks.LOOPS):
                wanted.leave_loop(_made_in_round(parent, where.suite[: where.index]))
            statement = parent
        self._elsewhere(site, wanted)

    def _handed_through(self, statement: ast.With | ast.AsyncWith, wanted: set[str]) -> Iterator[ast.expr]:
        """What a context of the project gets and gives back: ``with scaled(loss, optimizer) as l: l.backward()``."""
        for item in statement.items:
            path = blocks.path_of(item.optional_vars) if item.optional_vars is not None else None
            if path not in wanted or not isinstance(item.context_expr, ast.Call):
                continue
            for info in self.program.flow.callees(item.context_expr):
                for name in _yielded(info):
                    given = info.argument(item.context_expr, name)
                    if given is not None:
                        yield given

    def _visit(self, module: Module, statement: ast.stmt, wanted: _Wanted) -> None:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
            return
        if isinstance(statement, ast.If) and not statement.orelse and leaves_function(statement.body):
            return  # nothing of it comes to what stands below
        if self._steps_environment(statement):
            return  # it gives data of the next step
        written = blocks.writes(statement)
        if not blocks.touches(written, wanted.all):
            if not self._calls_writer(statement, wanted.all):
                return
        elif wanted.left_loop and not self._gradients.assigns(statement, wanted.carrying):
            return
        flowing = self._gradients.reads(statement) if self._gradients.assigns(statement, wanted.carrying) else set()
        wanted.grow(blocks.reads(statement), flowing)
        self._marked[statement] = (module, statement)

    def _steps_environment(self, statement: ast.stmt) -> bool:
        """Whether a statement steps an environment: ``state, reward, done, info = env.step(action)``."""
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            return False
        call, target = statement.value, statement.targets[0]
        return (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "step"
            and isinstance(target, ast.Tuple)
            and len(target.elts) >= _GIVEN_BY_STEPS
            and not self.program.runs_model(call)
        )

    def _calls_writer(self, statement: ast.stmt, wanted: set[str]) -> bool:
        """Whether the statement calls a method that assigns an attribute of ``self`` that is wanted."""
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
            return False
        call = statement.value
        for info in self.program.flow.callees(call):
            if info.cls is None or isinstance(info.node, ast.Lambda):
                continue
            base = blocks.path_of(call.func.value) if isinstance(call.func, ast.Attribute) else None
            if base is None:
                continue
            grown = {path for item in info.body for path in blocks.writes(item) if path.startswith("self.")}
            if {base + path[4:] for path in grown} & wanted and self.program.runs_model(call):
                return True
        return False

    def _elsewhere(self, site: Site, wanted: _Wanted) -> None:
        info = self.program.function_of(site.body)
        if info is None:
            return
        for caller in self.program.flow.callers(info):
            given: set[str] = set()
            for name, argument in info.bound(caller.call):
                if name in wanted.carrying:
                    given |= self._gradients.reads(argument)
                    self._note_given(site, caller, name, argument)
            if given:
                self._slice(calling(caller), given, wanted.left_loop)
        self._attributes(site, wanted)

    def _note_given(self, site: Site, caller: CallSite, name: str, argument: ast.expr) -> None:
        """Note an argument that computes what the loss is computed from, in a call that runs the backward pass."""
        if self.program.runs_look(argument):
            return  # what it computes is not scaled, and stays as it is
        if self.program.runs_model(argument) and self.program.runs_backward(caller.call):
            where = calling(caller)
            is_loss = isinstance(site, Backward) and blocks.path_of(site.loss) == name
            self.given[argument] = Given(where.module, where.scope, where.body, argument, caller.call, is_loss)

    def _attributes(self, site: Site, wanted: _Wanted) -> None:
        """Follow attributes that another function leaves behind: ``self.loss``, ``policy.rewards``."""
        for path in sorted(wanted.carrying):
            base, _, name = path.rpartition(".")
            if not base:
                continue
            for other, body, scope, written in self._attribute_writes.get(name, ()):
                if body is site.body or not self._same_owner(site.scope, base, scope, written):
                    continue
                kept = None
                if not self._gradients.assigns(other, written):
                    kept = self._gradients.kept_sum(other, scope)
                    if kept is None:
                        continue
                inner = [other] if isinstance(body, (ast.Module, ast.Lambda)) else body.body  # type: ignore[attr-defined]
                if not any(self.program.runs_model(item) for item in inner):
                    continue
                key = (other, frozenset(written), wanted.left_loop)
                if key in self._visited:
                    continue
                self._visited.add(key)
                self._marked[other] = (scope.module, other)
                read = self._gradients.reads(other) if kept is None else {kept}
                self._slice(Site(scope.module, scope, body, other), read, wanted.left_loop)

    @cached_property
    def _attribute_writes(self) -> dict[str, list[tuple[ast.stmt, ast.AST, Scope, set[str]]]]:
        """The statements that leave an attribute behind, by its name, and the paths by which they write it."""
        found: dict[str, list[tuple[ast.stmt, ast.AST, Scope, set[str]]]] = {}
        for node, body, scope in self.program.nodes():
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)):
                by_name: dict[str, set[str]] = {}
                for path in blocks.writes(node):
                    if "." in path:
                        by_name.setdefault(path.rpartition(".")[2], set()).add(path)
                for name, paths in by_name.items():
                    found.setdefault(name, []).append((node, body, scope, paths))
        return found

    def _same_owner(self, scope: Scope, base: str, other: Scope, written: set[str]) -> bool:
        values = self._values(base, scope)
        for path in written:
            others = self._values(path.rpartition(".")[0], other)
            if any(
                one.kind == two.kind and one.ref is two.ref and one.kind == "instance"
                for one in values
                for two in others
            ):
                return True
        return False

    def _values(self, path: str, scope: Scope) -> set[Value]:
        try:
            node = ast.parse(path, mode="eval").body
        except SyntaxError:
            return set()
        return self.program.flow.values(node, scope)

    # ---- runs ----------------------------------------------------------------------------------------------

    def _barrier(self, node: ast.AST) -> bool:
        return self.program.runs_backward(node) or self.program.runs_step(node) or self.program.runs_look(node)

    def _runs(self) -> list[StatementRun]:
        """Group the marked statements into runs that hold computation and no backward pass."""
        by_suite: dict[int, tuple[Module, tuple[ast.stmt, ...]]] = {}
        pending = list(self._marked.values())
        marked: set[ast.stmt] = set()
        while pending:
            module, statement = pending.pop()
            if not self.program.runs_model(statement) and not isinstance(
                statement, (ast.Assign, ast.AugAssign, ast.Expr, ast.If)
            ):
                marked.add(statement)
            elif self._barrier(statement) or isinstance(statement, (ast.With, ast.AsyncWith, ast.Try)):
                # The computation is further inside.
                inner = [child for suite in blocks.suites(statement) for child in suite]
                pending.extend((module, child) for child in inner)
                if not inner:
                    continue
                for nested in blocks.suites(statement):
                    by_suite[id(nested[0])] = (module, tuple(nested))
                continue
            else:
                marked.add(statement)
            where = blocks.place(module, statement)
            by_suite[id(where.suite[0])] = (module, where.suite)
        tainted = self._tainted(marked, self.program.runs_forward)
        # Of a model made by a package that cannot be read it is not known that it is trained; its loss counts too.
        computed = self._tainted(
            marked, lambda statement: self.program.runs_forward(statement) or self._calls_model(statement)
        )
        found = []
        for module, suite in by_suite.values():
            found.extend(self._runs_in(module, suite, marked, tainted, computed))
        return self._own(self._with_gradients(outermost(found), marked))

    def _with_gradients(self, runs: list[StatementRun], marked: set[ast.stmt]) -> list[StatementRun]:
        """Drop what computes with features taken without gradients alone, as clustering between epochs does."""

        def gives(statement: ast.stmt) -> bool:
            return self.program.runs_differentiable_forward(statement) or self._calls_model(statement)

        # What callers give has other names there; where it has the same one, it is taken for what they computed.
        anywhere = self._tainted(marked, gives)
        held: dict[ast.AST | None, set[str]] = {}

        def held_in(body: ast.AST | None) -> set[str]:
            info = self.program.function_of(body) if body is not None else None
            given = anywhere & set(info.parameters) if info is not None else set()
            return held.get(body, set()) | {path for path in anywhere if "." in path} | given

        def body_of(statement: ast.stmt) -> ast.AST | None:
            located = self.program.locate(statement)
            return located[0] if located is not None else None

        while True:
            before = sum(map(len, held.values()))
            for statement in marked:
                body = body_of(statement)
                if gives(statement) or blocks.touches(blocks.reads(statement), held_in(body)):
                    held.setdefault(body, set()).update(blocks.writes(statement))
            if sum(map(len, held.values())) == before:
                break
        kept = [
            run
            for run in runs
            if any(
                gives(item) or blocks.touches(blocks.reads(item), held_in(body_of(item))) for item in run.statements()
            )
        ]
        return kept or runs

    def _tainted(self, marked: set[ast.stmt], gives: Callable[[ast.stmt], bool]) -> set[str]:
        """Paths that hold what a model gave, or what was computed from it."""
        tainted: set[str] = set()
        while True:
            before = len(tainted)
            for statement in marked:
                if gives(statement) or blocks.touches(blocks.reads(statement), tainted):
                    tainted |= blocks.writes(statement)
            if len(tainted) == before:
                return tainted

    def _runs_in(
        self, module: Module, suite: tuple[ast.stmt, ...], marked: set[ast.stmt], tainted: set[str], computed: set[str]
    ) -> list[StatementRun]:
        found: list[StatementRun] = []
        first: ast.stmt | None = None
        last: ast.stmt | None = None
        for statement in suite:
            if self._barrier(statement):
                if first is not None and last is not None:
                    found.append(StatementRun(module, first, last))
                first = last = None
                continue
            if statement not in marked and self._is_set_up(module, statement, suite):
                if first is not None and last is not None:
                    found.append(StatementRun(module, first, last))
                first = last = None
            if statement not in marked or self._only_rolls_out(module, statement):
                continue
            computes = self.program.runs_model(statement)
            paths = blocks.reads(statement) | blocks.writes(statement)
            derived = blocks.touches(paths, tainted)
            differentiable = self.program.runs_differentiable_model(statement)
            begins = differentiable and (derived or self.program.runs_forward(statement))
            begins = begins or computes_beside(self.program, module, statement, tainted)
            begins = begins or (derived and self._asks_unknown_object(statement, tainted))
            if first is None and (begins or self._calls_model(statement)):
                first = statement
            if first is not None and (computes or derived or blocks.touches(paths, computed)):
                if last is None or not only_rescales(statement):
                    last = statement
        if first is not None and last is not None:
            found.append(StatementRun(module, first, last))
        return found

    def _asks_unknown_object(self, statement: ast.stmt, tainted: set[str]) -> bool:
        """Whether the statement has a loss of what a model gave, by a method of an object that is not known.

        The object may hold a network that is run on it: ``loss = self.adversary.loss(outputs, targets)``.
        """
        located = self.program.locate(statement)
        if located is None or not isinstance(statement, ast.Assign):
            return False
        body, scope = located
        if not blocks.touches(blocks.writes(statement), self._paths_of_losses.get(body, set())):
            return False
        calls = (node for node in blocks.walk_own(statement) if isinstance(node, ast.Call))
        return any(self._is_of_unknown_object(call, scope, tainted) for call in calls)

    def _is_of_unknown_object(self, call: ast.Call, scope: Scope, tainted: set[str]) -> bool:
        """Whether a method of an attribute of which nothing is known is given what a model gave."""
        path = blocks.path_of(call.func.value) if isinstance(call.func, ast.Attribute) else None
        if path is None or not path.startswith("self.") or blocks.touches({path}, tainted):
            return False
        if self.program.flow.callees(call) or self.program.callee_names(call, scope):
            return False
        given = [*call.args, *(item.value for item in call.keywords)]
        return all(map(_says_nothing, self._values(path, scope))) and any(
            blocks.touches(blocks.reads(item), tainted) for item in given
        )

    def _is_set_up(self, module: Module, statement: ast.stmt, suite: tuple[ast.stmt, ...]) -> bool:
        """Whether the statement makes a part of the program that a loop after it trains: no region goes on over it."""
        return (
            self._gradients.makes_object(statement)
            and not any(isinstance(parent, blocks.LOOPS) for parent in blocks.enclosing(module, statement))
            and any(isinstance(item, blocks.LOOPS) and self._barrier(item) for item in suite)
        )

    def _only_rolls_out(self, module: Module, statement: ast.stmt) -> bool:
        """Whether the statement asks a method of a model for something without gradients.

        What methods other than ``forward`` give is not cast back to FP32, and goes to NumPy or an environment.
        """
        body = blocks.body_of(module, statement)
        if not self.program.without_gradients(module, statement, body):
            return False
        return not self._calls_model(statement)

    def _calls_model(self, statement: ast.stmt) -> bool:
        """Whether the statement itself, not a function that it calls, runs the forward pass of some model."""
        located = self.program.locate(statement)
        return located is not None and any(
            isinstance(node, ast.Call) and self.program.called_models(node, located[1])
            for node in blocks.walk_own(statement)
        )

    def _own(self, runs: list[StatementRun]) -> list[StatementRun]:
        """Drop runs that only call functions with runs of their own."""
        bodies = {blocks.body_of(run.module, run.first) for run in runs}
        runs = [run for run in runs if not self._delegates(run, bodies - {blocks.body_of(run.module, run.first)})]
        return [run for run in runs if not self._is_called_within(run, runs)]

    def _is_called_within(self, run: StatementRun, runs: list[StatementRun]) -> bool:
        """Whether it stands in a forward pass that only others of the runs call: ``self.codes`` is kept there."""
        body = blocks.body_of(run.module, run.first)
        info = self.program.function_of(body) if self.program.is_model_code(body) else None
        callers = {caller.call for caller in self.program.flow.callers(info)} if info is not None else set()
        if not callers:
            return False
        others = (item for item in runs if item is not run)
        return callers <= {node for item in others for statement in item.statements() for node in walk(statement)}

    def _delegates(self, run: StatementRun, bodies: set[ast.AST]) -> bool:
        delegated = False
        for statement in run.statements():
            for node in blocks.walk_own(statement):
                located = self.program.locate(node) if isinstance(node, ast.Call) else None
                if located is None or not isinstance(node, ast.Call) or not self.program.runs_model(node):
                    continue
                if self.program.forwards(node, located[1]) or not self.program.called_from({node}) & bodies:
                    return False
                delegated = True
        return delegated


def _says_nothing(value: Value) -> bool:
    """Whether a function of Python itself gave the object, or what is not known: ``eval(name)``, ``makers[name]()``."""
    if value.kind == "attribute":
        return value.receiver is not None and value.receiver.kind == "instance"
    return value.kind == "object" and value.is_result and (not value.ref or str(value.ref).startswith("builtins."))


def _targets(generator: ast.comprehension) -> set[str | None]:
    """The names that a comprehension assigns."""
    return {blocks.path_of(node) for node in walk(generator.target) if isinstance(node, ast.Name)}


def _yielded(info: FunctionFacts) -> set[str]:
    """The parameter that a context written as a generator yields, if it yields nothing else."""
    if not any(name == "contextlib.contextmanager" for name, _ in info.decorators):
        return set()
    yields = [node for node in blocks.walk_body(info.node) if isinstance(node, (ast.Yield, ast.YieldFrom))]
    names = {node.value.id if isinstance(node.value, ast.Name) else "" for node in yields}
    is_written = any(names & blocks.writes(item) for item in info.body)
    return names if names <= set(info.parameters) and not is_written else set()
