"""Which of the processes that a script joins get to a place, and which tests tell them apart."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property, partial

from amp_rules.checks.common.file_writes import access_of
from amp_rules.checks.common.rank_branches import in_several
from amp_rules.checks.common.rank_paths import RankPaths, Reach, runs_on_one
from amp_rules.flow.values import CallSite
from amp_rules.plan.own_ddp.commands import run_by_libraries
from amp_rules.plan.own_ddp.decorators import Decorators
from amp_rules.plan.own_ddp.group import MAX_CALLERS, OwnGroup, is_guard
from amp_rules.plan.own_ddp.held_by_one import HeldByOne
from amp_rules.plan.own_ddp.lookups import may_run_anything
from amp_rules.plan.own_ddp.overridden import Overridden
from amp_rules.plan.own_ddp.parents import Parents
from amp_rules.plan.own_ddp.rank_tests import asks_which, is_of_first
from amp_rules.plan.statement_order import comes_after
from amp_rules.roles.sites import calling
from amp_rules.roles.workers import training_workers
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import conjuncts, last_name, walk

_ALONE = (Reach.ONE, Reach.EACH_NODE)


@dataclass(eq=False, slots=True)
class _Answer:
    """Which processes get to a place, and what the answer rests on.

    Attributes:
        found: the answer.
        functions: the functions on the ways to the place, which a way must not come to twice.
        met: those of them that it came to twice.
        depth: how many callers of callers were asked.
        is_cut: whether there were more than are asked.
    """

    found: Reach = Reach.UNKNOWN
    functions: set[ast.AST] = field(default_factory=set)
    met: set[ast.AST] = field(default_factory=set)
    depth: int = 0
    is_cut: bool = False

    def comes_to(self, function: ast.AST, seen: frozenset[ast.AST]) -> bool:
        """Whether a way comes to a function that it has seen."""
        self.functions.add(function)
        if function not in seen:
            return False
        self.met.add(function)
        return True

    def rest_on(self, other: _Answer) -> None:
        """Note what the answer for a caller rests on."""
        self.functions |= other.functions
        self.met |= other.met
        self.depth = max(self.depth, other.depth + 1)
        self.is_cut |= other.is_cut

    def fits(self, seen: frozenset[ast.AST]) -> bool:
        """Whether a way that has seen some functions finds the same."""
        return len(seen) + self.depth <= MAX_CALLERS and self.functions.isdisjoint(seen)


class ReachOfRanks(OwnGroup):
    """Answers about the ranks of one program."""

    # ---- which get there -----------------------------------------------------------------------------------------

    def reach(self, module: Module, node: ast.AST) -> Reach:
        """Which processes get to a place, by the tests on the way there, in other files too."""
        return self._reach(module, node, frozenset()).found

    def _reach(self, module: Module, node: ast.AST, seen: frozenset[ast.AST]) -> _Answer:
        # While a variable is asked about, the answers are for that question alone.
        is_kept = not self._held_by_one.is_asking
        known = self._reached.get(node) if is_kept else None
        if known is not None and known.fits(seen):
            return known
        answer = _Answer()
        answer.found = self._reach_by(module, node, seen, answer)
        if is_kept and not answer.is_cut and answer.met.isdisjoint(seen):
            self._reached[node] = answer
        return answer

    def _reach_by(self, module: Module, node: ast.AST, seen: frozenset[ast.AST], answer: _Answer) -> Reach:
        if self._without_group.holds_at(module, node) or self._is_told_by_callers(module, node):
            return Reach.ONE  # of one, or by what the callers say
        found = self._rank_paths(module).reach(node)
        info = self.program.function_of(blocks.body_of(module, node))
        if info is None or answer.comes_to(info.node, seen):
            return found
        if len(seen) > MAX_CALLERS:
            answer.is_cut = True
            return found
        if runs_on_one(info.node) or self._decorators.let_one_in(info):
            return Reach.ONE
        if self._parents.run_alone(info.node):
            return Reach.UNKNOWN  # of none that trains
        if info.node in self._workers:
            return self._rank_paths(module).decides(node)  # called where there is one process, and started by several
        is_known = found is not Reach.UNKNOWN and not self._is_called_elsewhere(module, info)
        if is_known and (found is Reach.EVERY or not self._is_called_by_another_name(info)):
            return found
        decided = self._rank_paths(module).decides(node)
        if decided is Reach.ONE:
            return Reach.ONE
        most, below = Reach.UNKNOWN, seen | {info.node}
        for item in self._running_callers(info):
            body = calling(item).body
            if answer.comes_to(body, below) or self._parents.run_alone(body):
                continue  # a function that calls itself, or of none that trains
            asked = self._reach(item.scope.module, item.call, below)
            answer.rest_on(asked)
            reached = asked.found
            if reached is Reach.UNKNOWN:
                # One of many callers that is not known could be the only one that matters.
                return found
            most = max(most, reached)
        return min(decided, most)

    @cached_property
    def _reached(self) -> dict[ast.AST, _Answer]:
        return {}

    def is_of_parent(self, body: ast.AST) -> bool:
        """Whether only the process that starts those which train gets to a function."""
        return self._parents.run_alone(body)

    @cached_property
    def _parents(self) -> Parents:
        return Parents(self.program, self.joins)

    @cached_property
    def _overridden(self) -> Overridden:
        return Overridden(self.program, lambda module, node: self._rank_paths(module).decides(node) is Reach.ONE)

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

    def _is_called_by_another_name(self, info: FunctionFacts) -> bool:
        """Whether a function is handed on and called there, as where processes start: ``fn(rank, world_size)``."""
        callers = self._running_callers(info) if info.receiver is None else []
        return any(last_name(item.call.func) != info.name for item in callers)

    def _running_callers(self, info: FunctionFacts) -> list[CallSite]:
        """The calls of a function, but for those under ``__name__ == "__main__"`` in files that are imported.

        A function that is called by its name is not one that a text may name as well. Nor do calls count for which the
        objects of several processes have a method of their own.
        """
        if self._held_by_one.is_asking:
            return self._found_running(info)
        known = self._running.get(info.node)
        if known is None:
            known = self._running[info.node] = self._found_running(info)
        return known

    @cached_property
    def _running(self) -> dict[ast.AST, list[CallSite]]:
        return {}

    def _found_running(self, info: FunctionFacts) -> list[CallSite]:
        callers = [
            item
            for item in self.program.flow.callers(info)
            if item.scope.module is self.program.entry
            or not any(is_guard(test) for test, _ in self.branches(item.scope.module, item.call))
            if info.receiver is None or not self._overridden.is_for_one(info, item.call)
        ]
        if info.receiver is None and any(last_name(item.call.func) == info.name for item in callers):
            return [item for item in callers if not may_run_anything(self.program, item.call)]
        return callers

    def _is_told_by_callers(self, module: Module, node: ast.AST) -> bool:
        """Whether a place stands under a parameter that every caller makes a test for one process: ``rank == 0``."""
        if self._held_by_one.is_asking:
            return self._is_told_now(module, node)
        known = self._told.get(node)
        if known is None:
            known = self._told[node] = self._is_told_now(module, node)
        return known

    @cached_property
    def _told(self) -> dict[ast.AST, bool]:
        return {}

    def _is_told_now(self, module: Module, node: ast.AST) -> bool:
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
        return self._is_way_of_first(module, node)

    def _lets_first_on(self, module: Module, place: ast.AST, test: ast.expr) -> bool:
        """Whether a test around a place lets the first process on, or another one beside it does."""
        # What one process alone has found out decides as well: ``if rank == 0: loss = f(); if loss < best: ...``.
        return any(
            is_of_first(other, holds)
            for other, holds in self.branches(module, place)
            if other is test or self._parts_processes(module, other)
        )

    def _is_way_of_first(self, module: Module, node: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> bool:
        """Whether what decides over a place lets the first process on: a test here, or one in other files.

        Past ``if rank == last: serve() else: work()`` all others work. Where nothing is known to decide, it does.
        """
        deciding = self._rank_paths(module).deciding(node)
        if deciding is not None:
            return self._lets_first_on(module, *deciding)
        info = self.program.function_of(blocks.body_of(module, node))
        if info is None or info.node in seen:
            return True
        below = seen | {info.node}
        callers = map(calling, self._running_callers(info))
        return all(self._is_way_of_first(caller.module, caller.node, below) for caller in callers)

    # ---- tests ---------------------------------------------------------------------------------------------------

    def tells_apart(self, module: Module, test: ast.expr) -> bool:
        """Whether a test that holds counts as one for one process: code under another would be held again and again."""
        return self._rank_paths(module).says(test, True) in _ALONE

    def parts_first(self, module: Module, branch: ast.If) -> bool:
        """Whether one process goes into an ``if`` by its test, and the others past it."""
        if not self._parts_processes(module, branch.test) or not self.reach(module, branch) >= Reach.EACH_NODE:
            return False
        if self.holds_on_all(module, branch):
            return False
        return self.tells_apart(module, branch.test) and is_of_first(branch.test, True)

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
            and not self._is_found_by_first(module, item, node)
            for item in blocks.walk_body(body)
        )

    def _is_found_by_first(self, module: Module, branch: ast.If, written: ast.AST) -> bool:
        """Whether the first process alone finds out what is written: it is the one that has to write it.

        The files have one name on all processes: none of what the branch gives is in it.
        """
        calls = [item for item in walk(written) if isinstance(item, ast.Call)]
        paths = [found.path for call in calls if (found := access_of(self.facts(module), call)) is not None]
        given = {name for item in (branch, *branch.orelse) for name in blocks.writes(item)}
        if not paths or any(path is None or blocks.reads(path) & given for path in paths):
            return False
        otherwise = {name for item in branch.orelse for name in blocks.writes(item)}
        return not otherwise & blocks.reads(written) and self.is_of_first_alone(module, branch.body[0])

    def holds_on_all(self, module: Module, branch: ast.If) -> bool:
        """Whether a test asks torch for the rank above the process group, where every process is told that it is 0."""
        return self.asks_torch(branch.test) and self.joins_below(module, branch)

    def _parts_processes(self, module: Module, test: ast.expr) -> bool:
        """Whether a test comes out differently on other ranks; ``if distributed:`` is alike on all."""
        if not asks_which(test) or in_several(test) is not None:
            return False
        return self._rank_paths(module).says(test, True) is not Reach.EVERY

    # ---- how -----------------------------------------------------------------------------------------------------

    @cached_property
    def _paths(self) -> dict[Module, RankPaths]:
        return {}

    def _rank_paths(self, module: Module) -> RankPaths:
        if module not in self._paths:
            asks = partial(self._held_by_one.asks, module)
            self._paths[module] = RankPaths(self.facts(module), ddp=True, asks=asks, started=self._started)
        return self._paths[module]

    @cached_property
    def _started(self) -> set[ast.AST]:
        """The functions that train in processes which the script starts, or that a library runs in each of them."""
        return {info.node for _, info in training_workers(self.program)} | set(run_by_libraries(self.program))

    @cached_property
    def _held_by_one(self) -> HeldByOne:
        return HeldByOne(self.program, self.is_of_first_alone)
