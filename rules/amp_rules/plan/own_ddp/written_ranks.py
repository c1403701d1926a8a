"""Process groups whose ranks the script writes out: ``init_process_group("nccl", rank=0, world_size=1)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.definitions import Definitions
from amp_rules.plan.own_ddp.group import OwnGroup
from amp_rules.plan.own_ddp.rank_tests import says_no_launcher
from amp_rules.roles.sites import Site
from amp_rules.roles.workers import workers
from amp_rules.source.index import argument_at, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.torch.distributed import RANK_OF_JOIN, WORLD_SIZE_OF_JOIN

_MAX_DEPTH = 5
"""Variables and callers between a number and the group; scripts have one or two."""


def is_of_one(own: OwnGroup) -> bool:
    """Whether the script joins groups of a single process alone, whatever starts it."""
    definitions = Definitions(own.program)
    numbers = [written(own, definitions, site) for site in own.joins]
    return bool(numbers) and all(size == 1 and rank == 0 for rank, size in numbers)


def written_ranks(own: OwnGroup) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield each call that joins a group as the same rank in all processes, and what to do."""
    definitions = Definitions(own.program)
    for site in own.joins:
        rank, size = written(own, definitions, site)
        if rank is None or any(says_no_launcher(*row) for row in own.branches(site.module, site.node)):
            continue
        joined = "the group is of one process" if size == 1 else f"each process that a launcher starts joins as {rank}"
        text = (
            f"the script writes the rank ({rank}) and the number of processes itself"
            if size == 1
            else (f"the script writes the rank ({rank}) itself")
        )
        remedy = "`init_process_group` with the backend alone takes both from torchrun"
        yield site.module, site.node, f"{text}: {joined}; {remedy}"


def written(own: OwnGroup, definitions: Definitions, site: Site) -> tuple[int | None, int | None]:
    """The rank and the world size that a call is given as numbers."""
    call = site.node
    assert isinstance(call, ast.Call)
    found = []
    for place, name in ((RANK_OF_JOIN, "rank"), (WORLD_SIZE_OF_JOIN, "world_size")):
        given = argument_at(call, name, place)
        found.append(number(own, definitions, given, site.scope) if given is not None else None)
    return found[0], found[1]


def number(own: OwnGroup, definitions: Definitions, node: ast.expr, scope: Scope, depth: int = 0) -> int | None:
    """The number that an expression is on every way to it; None where that is not known."""
    value = literal(node)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(node, ast.Name) or depth > _MAX_DEPTH:
        return None
    given = definitions.of(node, scope)
    function = definitions.parameter(node, scope)
    if function is None:
        if len(given) != 1 or not given[0].whole:
            return None
        return number(own, definitions, given[0].value, given[0].scope, depth + 1)
    info = own.program.function_of(function)
    if given or info is None or any(worker is info for _, worker in workers(own.program)):
        return None  # what starts a worker gives it its number
    numbers: set[int | None] = set()
    for caller in own.program.flow.callers(info):
        argument = info.argument_or_default(caller.call, node.id)
        numbers.add(number(own, definitions, argument, caller.scope, depth + 1) if argument is not None else None)
    return numbers.pop() if len(numbers) == 1 else None
