"""Who starts the processes of a script: a launcher, which tells each of them where they meet, or the script itself."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property

from amp_rules.plan.own_ddp.idle import is_within_idle
from amp_rules.plan.own_ddp.parents import Parents
from amp_rules.plan.own_ddp.rank_values import variable_read
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.workers import workers
from amp_rules.source.index import argument_at, keyword, literal
from amp_rules.torch.distributed import (
    LAUNCHER_VARIABLES,
    LOCAL_RANK_VARIABLES,
    OPTION_OF_LAUNCHERS,
    PROCESSES,
    RANK_OF_JOIN,
    WORLD_SIZE_OF_JOIN,
)


class Starts:
    """Questions about the ways to a place.

    Args:
        program: the program.
        joins: the calls that join processes.
    """

    def __init__(self, program: Program, joins: Iterable[Site]) -> None:
        self._program = program
        self._joins = list(joins)

    @cached_property
    def by_launcher(self) -> bool:
        """Whether a launcher may start the processes: some way to a join has none that the script starts."""
        return self._is_told and any(self.is_direct(site) for site in self._joins)

    @cached_property
    def by_script(self) -> bool:
        """Whether the script may start them itself: a worker joins, or what some process runs is not known."""
        known = {site.node for site, _ in workers(self._program)}
        calls = self._program.calls_to(PROCESSES)
        started = [site.node for site in calls if not is_within_idle(self._program, site.node, site.module)]
        return any(node not in known for node in started) or any(map(self._is_of_worker, self._joins))

    @cached_property
    def by_script_alone(self) -> bool:
        """Whether the processes join in workers that the script starts, and nowhere else."""
        return self.by_script and bool(self._joins) and not any(map(self.is_direct, self._joins))

    @cached_property
    def counted_by_launcher(self) -> bool:
        """Whether a launcher alone says how many processes there are; a group is told its size at its own place."""
        return self.by_launcher and not self.by_script and not any(_has_size(site.node) for site in self._joins)

    def is_direct(self, site: Site) -> bool:
        """Whether a place is reached from the file's own suite, as far as is known, and not in a worker alone."""
        return any(top not in self._workers for top in self._tops(site, frozenset()))

    def _is_of_worker(self, site: Site) -> bool:
        return any(top in self._workers for top in self._tops(site, frozenset()))

    def _tops(self, site: Site, seen: frozenset[ast.AST]) -> Iterator[ast.AST]:
        """Yield the bodies at which the ways to a place begin."""
        if site.body in self._workers:
            yield site.body
        info = self._program.function_of(site.body)
        callers = self._program.flow.callers(info) if info is not None else []
        if not callers and site.body not in self._workers:
            yield site.body
        for item in callers:
            caller = calling(item)
            if caller.body not in seen and not self._parents.is_of_single(item):
                yield from self._tops(caller, seen | {site.body})

    @cached_property
    def _workers(self) -> frozenset[ast.AST]:
        return frozenset(info.node for _, info in workers(self._program))

    @cached_property
    def _parents(self) -> Parents:
        return Parents(self._program, self._joins)

    @cached_property
    def _is_told(self) -> bool:
        """Whether the script asks for what a launcher tells each process, in the environment or by an option."""
        if any(name in module.source.text for module in self._program.flow.modules for name in OPTION_OF_LAUNCHERS):
            return True
        if any(
            variable in LAUNCHER_VARIABLES or variable in LOCAL_RANK_VARIABLES
            for node, _, scope in self._program.nodes()
            if (variable := variable_read(self._program, node, scope)) is not None
        ):
            return True
        return any(takes_rank_of_launcher(site.node) for site in self._joins) and not any(
            isinstance(node, ast.Constant) and node.value == "RANK"
            for module in self._program.flow.modules
            for node in module.nodes
        )


def takes_rank_of_launcher(join: ast.AST) -> bool:
    """``init_process_group("nccl")``, which reads ``RANK`` itself, and whatever of the group it is not told."""
    assert isinstance(join, ast.Call)
    return len(join.args) <= RANK_OF_JOIN and not {"rank", "store", None} & {item.arg for item in join.keywords}


def meets_by_environment(join: ast.AST) -> bool:
    """Whether the processes meet where the environment says: no address is given, and no store."""
    assert isinstance(join, ast.Call)
    given = argument_at(join, "init_method", 1)
    return (given is None or literal(given) in ("env://", None)) and keyword(join, "store") is None


def _has_size(join: ast.AST) -> bool:
    """Whether a script says itself how many processes join."""
    return isinstance(join, ast.Call) and argument_at(join, "world_size", WORLD_SIZE_OF_JOIN) is not None
