"""The process group of torch that a script joins itself: whether it does, and where its processes have joined."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from amp_rules.checks.common.rank_branches import in_several
from amp_rules.flow.values import CallSite
from amp_rules.plan.library_uses import first_use
from amp_rules.plan.own_ddp.idle import is_within_idle
from amp_rules.plan.own_ddp.other_processes import calls_itself_alone, is_choice_of_device
from amp_rules.plan.own_ddp.without_group import WithoutGroup
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.uncalled import uncalled
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.source.index import argument_at
from amp_rules.source.modules import Module
from amp_rules.torch.distributed import (
    EXCHANGES,
    GETS_RANK,
    JOINS,
    LOCAL_RANK_VARIABLES,
    OWN_SHARDING,
    RANK_OF_JOIN,
    RANK_VARIABLES,
    RPC,
    TRAINS_ON_TPU,
)
from amp_rules.torch.frameworks import JOINS_PROCESSES, runs_no_step

_OTHERS = ("horovod", "torch_xla", "deepspeed", "megatron", "colossalai", "oneflow", "paddle")
"""Packages that join processes in words of their own."""

MAX_CALLERS = 6
"""Callers of callers that are asked about a place, in other files too: as many as trainers stack."""


@dataclass
class OwnGroup:
    """Answers about the places of a program at which its processes join.

    Attributes:
        program: the program.
    """

    program: Program

    @cached_property
    def joins(self) -> list[Site]:
        """The calls of ``init_process_group``."""
        return self.program.calls_to(JOINS)

    @cached_property
    def joined_under(self) -> set[tuple[ast.AST, str]]:
        """The variables under whose number a process joins the others, with their functions: ``rank=gpu``."""
        found: set[tuple[ast.AST, str]] = set()
        for site in self.joins:
            rank = argument_at(site.node, "rank", RANK_OF_JOIN) if isinstance(site.node, ast.Call) else None
            if isinstance(rank, ast.Name):
                found.add((site.body, rank.id))
        return found

    def in_several(self, test: ast.expr) -> bool | None:
        """What a test is where there are several processes: by what it asks, or since they join under it alone."""
        said = in_several(test)
        if said is not None:
            return said
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            held = self._joined_by.get(ast.unparse(test.operand))
            return None if held is None else not held
        return self._joined_by.get(ast.unparse(test))

    @cached_property
    def _joined_by(self) -> dict[str, bool]:
        """The settings without which nothing joins, and what each is then: ``args.apex`` of ``if args.apex:``.

        One that is set anew below, or elsewhere, says nothing of other places.
        """
        joins = [site for site in self.joins if site.body not in self.uncalled]
        asked = [
            {(ast.unparse(test), holds) for test, holds in self.branches(site.module, site.node) if _is_setting(test)}
            for site in joins
        ]
        common = set.intersection(*asked) if asked else set()
        found = {text: holds for text, holds in common if (text, not holds) not in common}
        written = [
            Site(scope.module, scope, body, node)
            for node, body, scope in (self.program.nodes() if found else ())
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and ast.unparse(node) in found
        ]
        for site in written:
            if not all(site.body is join.body and site.line < join.line for join in joins):
                found.pop(ast.unparse(site.node), None)
        return found

    @cached_property
    def is_several_always(self) -> bool:
        """Whether the script joins a group however it is started: no test stands before it."""
        return any(self._is_always(site, frozenset()) for site in self.joins)

    def is_always(self, site: Site) -> bool:
        """Whether a place is reached however the script is started: no test stands before it, for all that is known."""
        # What stands under ``__name__ == "__main__"`` in a file that is imported does not run.
        of_entry = site.module is self.program.entry
        is_run = of_entry or not any(is_guard(test) for test, _ in self.branches(site.module, site.node))
        return is_run and site.body not in self.uncalled and self._is_always(site, frozenset())

    def _is_always(self, site: Site, seen: frozenset[ast.AST]) -> bool:
        index = self.facts(site.module).index
        if any(not is_guard(test) for test, _ in index.branches(site.node)):
            return False
        if any(isinstance(item, ast.Try) for item in blocks.enclosing(site.module, site.node)):
            return False
        if _may_return_above(site):
            return False
        info = self.program.function_of(site.body)
        if info is None or info.node in seen or len(seen) > MAX_CALLERS:
            return info is None
        callers = self.program.flow.callers(info)
        # A worker that ``spawn`` runs has none.
        return all(self._is_always(calling(item), seen | {info.node}) for item in callers)

    @cached_property
    def _without_group(self) -> WithoutGroup:
        return WithoutGroup(self.program, self.joins, self.branches)

    def is_joined_at(self, module: Module, node: ast.AST) -> bool:
        """Whether a place comes after the processes have joined, where they do: on every way there, for certain."""
        return self.is_behind(self._joins_in, module, node)

    def is_behind(self, runs: Callable[[ast.AST], bool], module: Module, node: ast.AST) -> bool:
        """Whether something that ``runs`` tells of has run at a place: on every way there, for certain."""
        return self._is_behind(runs, module, node, frozenset())

    def _is_behind(
        self, runs: Callable[[ast.AST], bool], module: Module, node: ast.AST, seen: frozenset[ast.AST]
    ) -> bool:
        body = blocks.body_of(module, node)
        statement = blocks.statement_of(module, node)
        if any(runs(item) for item in blocks.statements_above(module, statement, body)):
            return True
        info = self.program.function_of(body)
        if info is None or body in seen or len(seen) > MAX_CALLERS:
            return False
        callers = self._callers(info)
        return bool(callers) and all(
            self._is_behind(runs, item.scope.module, item.call, seen | {body}) for item in callers
        )

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
        if body in seen or len(seen) > MAX_CALLERS:
            return False
        if info is None:
            # The first import runs the file: what stands below another one comes too late.
            return any(self._joins_below(*place, seen | {body}) for place in self._imports.get(module, ()))
        callers = self._callers(info)
        return bool(callers) and all(self._joins_below(item.scope.module, item.call, seen | {body}) for item in callers)

    @cached_property
    def _imports(self) -> dict[Module, list[tuple[Module, ast.stmt]]]:
        """The statements that import each file of the program."""
        found: dict[Module, list[tuple[Module, ast.stmt]]] = {}
        for module in self.program.flow.modules:
            for node in module.nodes:
                if isinstance(node, ast.Import):
                    names, level = [item.name for item in node.names], 0
                elif isinstance(node, ast.ImportFrom):
                    base, level = node.module or "", node.level
                    names = [base, *(f"{base}.{item.name}".lstrip(".") for item in node.names)]
                else:
                    continue
                for name in names:
                    imported = self.program.project.find(module, name, level)
                    if imported is not None and imported is not module:
                        found.setdefault(imported, []).append((module, node))
        return found

    @cached_property
    def runs_exchange(self) -> Callable[[ast.AST], bool]:
        """Says of a node whether what it runs exchanges something between the processes."""
        calls = {site.node for site in self.program.calls_to(EXCHANGES)}
        return self.program.closure(lambda node: node in calls)

    @cached_property
    def _joins_in(self) -> Callable[[ast.AST], bool]:
        calls = {site.node for site in self.joins}
        return self.program.closure(lambda node: node in calls)

    def _callers(self, info: FunctionFacts) -> list[CallSite]:
        """The calls of a function, but for those in functions that nothing calls, as an older way to train."""
        return [item for item in self.program.flow.callers(info) if item.scope.node not in self.uncalled]

    @cached_property
    def uncalled(self) -> frozenset[ast.AST]:
        """The functions that nothing in the program can call."""
        return uncalled(self.program)

    def several_alone(self, module: Module, node: ast.AST) -> bool | None:
        """Whether a place is reached in several processes alone: None where nothing around it says."""
        for test, holds in self.facts(module).index.branches(node):
            said = self.in_several(test)
            if said is not None:
                return said is holds
        return True if self.is_several_always else None

    @cached_property
    def asks_torch(self) -> Callable[[ast.AST], bool]:
        """Whether running a node asks torch alone for the rank, or whether there are several processes.

        What looks into the environment too knows the rank above the process group.
        """
        questions = {site.node for site in self.program.calls_to(GETS_RANK | {"torch.distributed.is_initialized"})}
        asks = self.program.closure(lambda node: node in questions)
        looks = self.program.closure(lambda node: isinstance(node, ast.Constant) and node.value in _IN_ENVIRONMENT)
        return lambda node: asks(node) and not looks(node)

    def facts(self, module: Module) -> ModuleFacts:
        """What the text of one file says."""
        known: ModuleFacts | None = module.kept.get("own_ddp_facts")
        if known is None:
            known = module.kept["own_ddp_facts"] = ModuleFacts(module, _Nothing())
        return known

    def branches(self, module: Module, node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
        """The tests that decide within the function whether a place is reached, and how they come out."""
        return self.facts(module).index.branches(node)

    def contradict(self, one: Site, other: Site) -> bool:
        """Whether no run comes to both places: one test is asked for them, and comes out differently."""
        tests = {(ast.unparse(test), not holds) for test, holds in self.branches(one.module, one.node)}
        return any((ast.unparse(test), holds) in tests for test, holds in self.branches(other.module, other.node))


def _may_return_above(site: Site) -> bool:
    """Whether a branch above a place leaves its function: ``else: args.distributed = False; return``."""
    if isinstance(site.body, ast.Module):
        return False
    above = blocks.statements_above(site.module, blocks.statement_of(site.module, site.node), site.body)
    return any(isinstance(node, ast.Return) for item in above for node in blocks.walk_own(item))


def _is_setting(test: ast.expr) -> bool:
    """Whether a test asks for an entry of settings, by a path that is the same in all functions: ``args.apex``."""
    root = (blocks.path_of(test) or "").partition(".")[0] if isinstance(test, ast.Attribute) else ""
    return root not in ("", "self", "cls")


_IN_ENVIRONMENT = RANK_VARIABLES | LOCAL_RANK_VARIABLES


def is_own(program: Program) -> bool:
    """Whether a program that trains joins a process group of torch itself, and no framework looks after it."""
    return bool(program.backwards) and joins_torch_alone(program)


def joins_torch_alone(program: Program) -> bool:
    """Whether a program joins a process group of torch itself, and no framework looks after it."""
    return looked_after(program) is None and next(joins_run(program), None) is not None


def looked_after(program: Program) -> tuple[Module, ast.AST, str] | None:
    """The first use of a library that may look after processes: the file, the place and the name."""
    calls = () if calls_itself_alone(program) else (RPC,)

    def looks_after_none(name: str, node: ast.AST, module: Module) -> bool:
        return runs_no_step(name) or _moves_alone(name) or is_choice_of_device(program, name, node, module)

    return first_use(program, (*JOINS_PROCESSES, *_OTHERS, *OWN_SHARDING, *calls), looks_after_none)


def joins_run(program: Program) -> Iterator[Site]:
    """Yield the calls that join processes, but for those in functions that nothing calls or mentions."""
    return (site for site in program.calls_to(JOINS) if not is_within_idle(program, site.node, site.module))


def _moves_alone(name: str) -> bool:
    """Whether a name is of torch_xla, and starts and reduces nothing: a model that may live on a TPU."""
    parts = name.split(".")
    return parts[0] == "torch_xla" and parts[-1] not in TRAINS_ON_TPU


def is_guard(test: ast.expr) -> bool:
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

    def importers(self, module: ModuleFacts) -> list[ModuleFacts]:
        """None."""
        return []
