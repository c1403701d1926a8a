"""What the rewrites of a script's own processes are given: who joins them, which rank gets where, how they call it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

from amp_rules.checks.common.file_writes import Access, access_of, is_shared
from amp_rules.checks.common.rank_branches import in_several, names_rank
from amp_rules.checks.common.rank_paths import RankPaths, Reach, runs_on_one
from amp_rules.flow.values import CallSite, Value
from amp_rules.plan import notes
from amp_rules.plan.batch_norms import BatchNorms
from amp_rules.plan.library_uses import first_use
from amp_rules.plan.options import Options
from amp_rules.plan.own_ddp.decorators import Decorators
from amp_rules.plan.own_ddp.held_by_one import HeldByOne
from amp_rules.plan.own_ddp.idle import is_within_idle
from amp_rules.plan.own_ddp.named_by_rank import NamedByRank
from amp_rules.plan.own_ddp.parents import Parents
from amp_rules.plan.own_ddp.rank_tests import conjuncts, is_of_first
from amp_rules.plan.own_ddp.without_group import WithoutGroup
from amp_rules.plan.report import Note
from amp_rules.plan.rule import Rule
from amp_rules.plan.statement_order import comes_after
from amp_rules.plan.words import Words
from amp_rules.roles.batches import DataFlow, TrainingData
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.uncalled import uncalled
from amp_rules.roles.workers import training_workers
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.apex import ALL_WRAPPERS
from amp_rules.torch.distributed import GETS_RANK, JOINS, OWN_SHARDING, TRAINS_ON_TPU
from amp_rules.torch.frameworks import JOINS_PROCESSES, runs_no_step
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL

_MAX_CALLERS = 6
"""Callers of callers in other files that are asked which rank gets there: as many as trainers stack."""

_OTHERS = ("horovod", "torch_xla", "deepspeed", "megatron", "colossalai", "oneflow", "paddle")
"""Packages that join processes in words of their own."""

_ALONE = (Reach.ONE, Reach.EACH_NODE)


@dataclass
class OwnDdp:
    """One program that joins a process group of torch itself.

    Attributes:
        program: the program, as the round before left it.
        options: what was asked for.
        modules: those of its files that may be changed.
        told: what was left as it is, and why.
    """

    program: Program
    options: Options
    modules: frozenset[Module]
    told: list[Note] = field(default_factory=list)
    _paths: dict[Module, RankPaths] = field(default_factory=dict)

    # ---- the processes -------------------------------------------------------------------------------------------

    @cached_property
    def joins(self) -> list[Site]:
        """The calls of ``init_process_group``."""
        return self.program.calls_to(JOINS)

    @cached_property
    def wraps(self) -> list[Site]:
        """The calls of ``DistributedDataParallel``, torch's and Apex's, which the runtime has."""
        wrappers = DISTRIBUTED_DATA_PARALLEL | ALL_WRAPPERS
        return [site for site in self.program.calls_to(wrappers) if site.module in self.modules]

    @cached_property
    def put_into(self) -> dict[str, list[tuple[ast.expr, Site]]]:
        """What is put into elements of containers, and where, by the path of the container."""
        found: dict[str, list[tuple[ast.expr, Site]]] = {}
        for node, body, scope in self.program.nodes():
            for target in node.targets if isinstance(node, ast.Assign) else ():
                path = blocks.path_of(target.value) if isinstance(target, ast.Subscript) else None
                if path is not None and isinstance(node, ast.Assign):
                    found.setdefault(path, []).append((node.value, Site(scope.module, scope, body, node)))
        return found

    @cached_property
    def is_several_always(self) -> bool:
        """Whether the script joins a group however it is started: no test stands before it."""
        return any(self._is_always(site, frozenset()) for site in self.joins)

    def is_always(self, site: Site) -> bool:
        """Whether a place is reached however the script is started: no test stands before it, for all that is known."""
        # What stands under ``__name__ == "__main__"`` in a file that is imported does not run.
        of_entry = site.module is self.program.entry
        is_run = of_entry or not any(_is_guard(test) for test, _ in self.branches(site.module, site.node))
        return is_run and site.body not in self.uncalled and self._is_always(site, frozenset())

    def _is_always(self, site: Site, seen: frozenset[ast.AST]) -> bool:
        index = self.facts(site.module).index
        if any(not _is_guard(test) for test, _ in index.branches(site.node)):
            return False
        if any(isinstance(item, ast.Try) for item in blocks.enclosing(site.module, site.node)):
            return False
        info = self.program.function_of(site.body)
        if info is None or info.node in seen or len(seen) > _MAX_CALLERS:
            return info is None
        callers = self.program.flow.callers(info)
        # A worker that ``spawn`` runs has none.
        return all(self._is_always(calling(item), seen | {info.node}) for item in callers)

    @cached_property
    def _without_group(self) -> WithoutGroup:
        return WithoutGroup(self.program, self.joins, self.branches)

    def is_joined_at(self, module: Module, node: ast.AST) -> bool:
        """Whether a place comes after the processes have joined, where they do: on every way there, for certain."""
        return self._is_joined_at(module, node, frozenset())

    def _is_joined_at(self, module: Module, node: ast.AST, seen: frozenset[ast.AST]) -> bool:
        body = blocks.body_of(module, node)
        statement = blocks.statement_of(module, node)
        if any(self._joins_in(item) for item in blocks.statements_above(module, statement, body)):
            return True
        info = self.program.function_of(body)
        if info is None or body in seen or len(seen) > _MAX_CALLERS:
            return False
        callers = self._callers(info)
        return bool(callers) and all(
            self._is_joined_at(item.scope.module, item.call, seen | {body}) for item in callers
        )

    def _callers(self, info: FunctionFacts) -> list[CallSite]:
        """The calls of a function, but for those in functions that nothing calls, as an older way to train."""
        return [item for item in self.program.flow.callers(info) if item.scope.node not in self.uncalled]

    @cached_property
    def uncalled(self) -> frozenset[ast.AST]:
        """The functions that nothing in the program can call."""
        return uncalled(self.program)

    def joins_below(self, module: Module, node: ast.AST) -> bool:
        """Whether the processes join only below a place: torch tells no rank there, and speaks of one process."""
        # A function that joins where nobody has may be called once more: ``world_size, rank = init_distributed()``.
        return self._joins_below(module, node, frozenset()) and not self.is_joined_at(module, node)

    def _joins_below(self, module: Module, node: ast.AST, seen: frozenset[ast.AST]) -> bool:
        body = blocks.body_of(module, node)
        statement = blocks.statement_of(module, node)
        if any(self._joins_in(item) for item in (statement, *blocks.statements_above(module, statement, body))):
            return False
        if self._without_group.holds_at(module, node):
            return False  # there they do not join at all
        suites = blocks.suites_around(module, statement)
        if any(self._joins_in(item) for suite, index in suites for item in suite[index + 1 :]):
            return True
        info = self.program.function_of(body)
        if info is None or body in seen or len(seen) > _MAX_CALLERS:
            return False
        callers = self._callers(info)
        return bool(callers) and all(self._joins_below(item.scope.module, item.call, seen | {body}) for item in callers)

    @cached_property
    def _joins_in(self) -> Callable[[ast.AST], bool]:
        calls = {site.node for site in self.joins}
        return self.program.closure(lambda node: node in calls)

    def several_alone(self, module: Module, node: ast.AST) -> bool | None:
        """Whether a place is reached in several processes alone: None where nothing around it says."""
        for test, holds in self.facts(module).index.branches(node):
            said = in_several(test)
            if said is not None:
                return said is holds
        return True if self.is_several_always else None

    # ---- ranks ---------------------------------------------------------------------------------------------------

    def reach(self, module: Module, node: ast.AST) -> Reach:
        """Which processes get to a place, by the tests on the way there, in other files too."""
        return self._reach(module, node, frozenset())

    def _reach(self, module: Module, node: ast.AST, seen: frozenset[ast.AST]) -> Reach:
        if self._without_group.holds_at(module, node) or self._is_told_by_callers(module, node):
            return Reach.ONE  # of one, or by what the callers say
        found = self._rank_paths(module).reach(node)
        info = self.program.function_of(blocks.body_of(module, node))
        if info is None or info.node in seen or len(seen) > _MAX_CALLERS:
            return found
        if runs_on_one(info.node) or self._decorators.let_one_in(info):
            return Reach.ONE
        if self._parents.run_alone(info.node):
            return Reach.UNKNOWN  # of none that trains
        if info.node in self._workers:
            return self._rank_paths(module).decides(node)  # called where there is one process, and started by several
        if found is not Reach.UNKNOWN and not self._is_called_elsewhere(module, info):
            return found
        decided = self._rank_paths(module).decides(node)
        if decided is Reach.ONE:
            return Reach.ONE
        most = Reach.UNKNOWN
        for item in self._running_callers(info):
            reached = self._reach(item.scope.module, item.call, seen | {info.node})
            if reached is Reach.UNKNOWN:
                # One of many callers that is not known could be the only one that matters.
                return found
            most = max(most, reached)
        return min(decided, most)

    @cached_property
    def _parents(self) -> Parents:
        return Parents(self.program, self.joins)

    @cached_property
    def _decorators(self) -> Decorators:
        return Decorators(self.program, self._rank_paths)

    @cached_property
    def _workers(self) -> frozenset[ast.AST]:
        return frozenset(info.node for _, info in training_workers(self.program))

    def _is_called_elsewhere(self, module: Module, info: FunctionFacts, seen: frozenset[ast.AST] = frozenset()) -> bool:
        """Whether other files alone call a function, through functions of its own: its file is no script that runs."""
        callers = self._running_callers(info)
        if module is self.program.entry or not callers or info.node in seen:
            return False
        inner = [self.program.function_of(calling(item).body) for item in callers if item.scope.module is module]
        below = seen | {info.node}
        return all(around is not None and self._is_called_elsewhere(module, around, below) for around in inner)

    def _running_callers(self, info: FunctionFacts) -> list[CallSite]:
        """The calls of a function, but for those under ``__name__ == "__main__"`` in files that are imported."""
        return [
            item
            for item in self.program.flow.callers(info)
            if item.scope.module is self.program.entry
            or not any(_is_guard(test) for test, _ in self.branches(item.scope.module, item.call))
        ]

    def _is_told_by_callers(self, module: Module, node: ast.AST) -> bool:
        """Whether a place stands under a parameter that every caller makes a test for one process: ``rank == 0``."""
        info = self.program.function_of(blocks.body_of(module, node))
        tests = [test for test, holds in self.branches(module, node) if holds] if info is not None else []
        parts = [part for test in tests for part in conjuncts(test) if isinstance(part, ast.Name)]
        named = {part.id for part in parts if info is not None and part.id in info.parameters}
        if info is None or not named:
            return False
        callers = self.program.flow.callers(info)
        given = {name: [(item, info.argument_or_default(item.call, name)) for item in callers] for name in named}
        return any(
            bool(said)
            and all(argument is not None and self.tells_apart(item.scope.module, argument) for item, argument in said)
            for said in given.values()
        )

    def tells_apart(self, module: Module, test: ast.expr) -> bool:
        """Whether a test that holds counts as one for one process: code under another would be held again and again."""
        return self._rank_paths(module).says(test, True) in _ALONE

    def only_together(self, module: Module, node: ast.AST) -> bool:
        """Whether no process gets to a place that others do not get to: by no way on which a test asks for one."""
        return self._only_together(module, node, frozenset())

    def _only_together(self, module: Module, node: ast.AST, seen: frozenset[ast.AST]) -> bool:
        paths = self._rank_paths(module)
        if self._without_group.holds_at(module, node):
            return True
        if any(in_several(test) is (not holds) for test, holds in paths.index.branches(node)):
            return True  # where there are several, none gets there
        if paths.decides(node) is not Reach.EVERY:
            return False
        info = self.program.function_of(blocks.body_of(module, node))
        if info is None or info.node in seen:
            return True
        if self._decorators.let_one_in(info):
            return False
        below = seen | {info.node}
        return all(self._only_together(item.scope.module, item.call, below) for item in self.program.flow.callers(info))

    def is_of_first_alone(self, module: Module, node: ast.AST) -> bool:
        """Whether one of several processes gets to a place, of each machine at most, and the others run on."""
        if self.reach(module, node) not in _ALONE or self.only_together(module, node):
            return False
        deciding = self._rank_paths(module).deciding(node)
        if deciding is None:
            return True  # a caller in another file asks
        place, test = deciding
        # What one process alone has found out decides as well: ``if rank == 0: loss = f(); if loss < best: ...``.
        return any(
            is_of_first(other, holds)
            for other, holds in self.branches(module, place)
            if other is test or self._parts_processes(module, other)
        )

    def parts_first(self, module: Module, branch: ast.If) -> bool:
        """Whether one process goes into an ``if`` by its test, and the others past it."""
        if not self._parts_processes(module, branch.test) or not self.reach(module, branch) >= Reach.EACH_NODE:
            return False
        if self.holds_on_all(module, branch):
            return False
        return self.tells_apart(module, branch.test) and is_of_first(branch.test, True)

    def saves(self, module: Module, call: ast.Call) -> bool:
        """Whether a call of a library writes a file or takes one away, as far as its name says."""
        access = access_of(self.facts(module), call)
        return access is not None and access.kind in ("write", "remove")

    def is_own_file(self, module: Module, call: ast.Call) -> bool:
        """Whether a call changes a file of its process alone: its rank is in the path."""
        access = access_of(self.facts(module), call)
        given = self._given_paths(module, call, access)
        if access is not None and given:
            # A helper that is given the path: other calls of it, which nothing runs, say nothing.
            return all(self._is_own(where, access._replace(call=at, path=path)) for where, at, path in given)
        paths: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        if access is not None and access.path is not None:
            paths = [access.path]
        written = [item.value if isinstance(item, ast.keyword) else item for item in paths]
        return (
            any(map(names_rank, paths))
            or any(self._named_by_rank.holds(module, path) for path in written)
            or (access is not None and not is_shared(self.facts(module), access, by_clock=False))
        )

    def _is_own(self, module: Module, access: Access) -> bool:
        assert access.path is not None
        if names_rank(access.path) or self._named_by_rank.holds(module, access.path):
            return True
        return not is_shared(self.facts(module), access, by_clock=False)

    @cached_property
    def _named_by_rank(self) -> NamedByRank:
        return NamedByRank(self.program)

    def _given_paths(
        self, module: Module, call: ast.Call, access: Access | None
    ) -> list[tuple[Module, ast.Call, ast.expr]]:
        """The paths that callers give to the function of a call, which hands one on; none where it does not."""
        info = self.program.function_of(blocks.body_of(module, call))
        path = access.path if access is not None else None
        if info is None or not isinstance(path, ast.Name) or names_rank(path):
            return []
        found = [
            (item.scope.module, item.call, given)
            for item in self.program.flow.callers(info)
            if (given := info.argument(item.call, path.id)) is not None
        ]
        return found if len(found) == len(self.program.flow.callers(info)) else []

    def given_by_rank(self, module: Module, statement: ast.stmt) -> bool:
        """Whether the function at a place gives what a statement assigns another value on other ranks."""
        body = blocks.body_of(module, statement)
        given = blocks.writes(statement)
        return any(
            isinstance(item, ast.If) and self._parts_processes(module, item.test) and blocks.writes(item) & given
            for item in blocks.walk_body(body)
        )

    def told_by_rank(self, module: Module, node: ast.AST) -> bool:
        """Whether the function at a place gives something that is read there another value on other ranks."""
        body = blocks.body_of(module, node)
        statement = blocks.statement_of(module, node)
        read = {item.id for item in walk(node) if isinstance(item, ast.Name)}
        # ``with open(path, "w") as file:`` gives its file to itself.
        opened = [part.optional_vars for item in walk(node) if isinstance(item, ast.With) for part in item.items]
        read -= {item.id for item in opened if isinstance(item, ast.Name)}
        return any(
            isinstance(item, ast.If)
            and self._parts_processes(module, item.test)
            and blocks.writes(item) & read
            and comes_after(module, statement, item)
            and not self.holds_on_all(module, item)
            for item in blocks.walk_body(body)
        )

    def holds_on_all(self, module: Module, branch: ast.If) -> bool:
        """Whether a test asks torch for the rank above the process group, where every process is told that it is 0."""
        return self.asks_torch(branch.test) and self.joins_below(module, branch)

    @cached_property
    def asks_torch(self) -> Callable[[ast.AST], bool]:
        """Whether running a node asks torch for the rank, or whether there are several processes."""
        questions = {site.node for site in self.program.calls_to(GETS_RANK | {"torch.distributed.is_initialized"})}
        return self.program.closure(lambda node: node in questions)

    def _parts_processes(self, module: Module, test: ast.expr) -> bool:
        """Whether a test comes out differently on other ranks; ``if distributed:`` is alike on all."""
        if not names_rank(test) or in_several(test) is not None:
            return False
        return self._rank_paths(module).says(test, True) is not Reach.EVERY

    def _rank_paths(self, module: Module) -> RankPaths:
        if module not in self._paths:
            asks = partial(self._held_by_one.asks, module)
            self._paths[module] = RankPaths(self.facts(module), ddp=True, asks=asks, started=self._started)
        return self._paths[module]

    @cached_property
    def _started(self) -> set[ast.AST]:
        """The functions that train in processes which the script starts."""
        return {info.node for _, info in training_workers(self.program)}

    @cached_property
    def _held_by_one(self) -> HeldByOne:
        return HeldByOne(self.program, self.reach)

    def facts(self, module: Module) -> ModuleFacts:
        """What the text of one file says."""
        known: ModuleFacts | None = module.kept.get("own_ddp_facts")
        if known is None:
            known = module.kept["own_ddp_facts"] = ModuleFacts(module, _Nothing())
        return known

    def branches(self, module: Module, node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
        """The tests that decide within the function whether a place is reached, and how they come out."""
        return self.facts(module).index.branches(node)

    @cached_property
    def norms(self) -> BatchNorms:
        """Which models have batch norm."""
        return BatchNorms(self.program)

    # ---- data ----------------------------------------------------------------------------------------------------

    @cached_property
    def batches(self) -> DataFlow:
        """Questions about loaders and loops."""
        return DataFlow(self.program)

    @cached_property
    def data(self) -> TrainingData:
        """What feeds the training steps."""
        return self.batches.training_data()

    def holds(self, node: ast.expr, scope: Scope, values: set[Value]) -> bool:
        """Whether an expression may hold one of some values."""
        return bool(self.program.flow.values(node, scope) & values)

    # ---- words ---------------------------------------------------------------------------------------------------

    def word(self, module: Module, target: str) -> str | None:
        """How a file calls something of torch by what it imports at its head; None where it cannot."""
        return Words(self.program).word(module, target)

    @staticmethod
    def source(module: Module, node: ast.AST) -> str:
        """The exact source of an expression on one line; of several lines, as Python would write it."""
        (line, column), (end_line, end_column) = module.start(node), module.end(node)
        rows = module.lines[line - 1 : end_line]
        return rows[0][column:end_column] if len(rows) == 1 else ast.unparse(node)

    # ---- telling -------------------------------------------------------------------------------------------------

    def tell(self, module: Module, node: ast.AST, text: str) -> None:
        """Note what is wrong, and stays: ``text`` is a sentence without a full stop."""
        self.told.append(notes.note(notes.OWN_LEFT, module, node, text))

    def leave(self, rule: Rule, module: Module, node: ast.AST, text: str) -> None:
        """Note what is left as it is, for a rewrite: ``text`` says what, and why."""
        self.told.append(notes.note(notes.OWN_LEFT, module, node, f"{rule.code}: {text}"))


def more_places(count: int) -> str:
    """What a note on the first of some places says of the others."""
    return f"; so it is at {count - 1} more place{'s' * (count > 2)}" if count > 1 else ""


def is_own(program: Program) -> bool:
    """Whether a program that trains joins a process group of torch itself, and no framework looks after it."""
    return bool(program.backwards) and joins_torch_alone(program)


def joins_torch_alone(program: Program) -> bool:
    """Whether a program joins a process group of torch itself, and no framework looks after it."""
    others = (*JOINS_PROCESSES, *_OTHERS, *OWN_SHARDING)
    if first_use(program, others, lambda name, _node, _module: runs_no_step(name) or _moves_alone(name)):
        return False
    return next(joins_run(program), None) is not None


def joins_run(program: Program) -> Iterator[Site]:
    """Yield the calls that join processes, but for those in functions that nothing calls or mentions."""
    return (site for site in program.calls_to(JOINS) if not is_within_idle(program, site.node, site.module))


def _moves_alone(name: str) -> bool:
    """Whether a name is of torch_xla, and starts and reduces nothing: a model that may live on a TPU."""
    parts = name.split(".")
    return parts[0] == "torch_xla" and parts[-1] not in TRAINS_ON_TPU


def _is_guard(test: ast.expr) -> bool:
    """``__name__ == "__main__"``."""
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


class _Nothing:
    """Finds nothing in other files: there the program knows the callers."""

    def resolve(self, importer: ModuleFacts, dotted: str) -> None:
        """Nothing."""

    def module_of_constant(self, importer: ModuleFacts, dotted: str) -> None:
        """Nothing."""

    def users(self, function: FunctionFacts) -> list[ModuleFacts]:
        """None."""
        return []
