"""Calls of the script's own in which the processes would meet, and to which not all of them come."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.group_guards import GroupGuards
from amp_rules.roles.sites import Site
from amp_rules.torch.distributed import GETS_RANK


def reasons(distribution: Distribution) -> Iterator[Declined]:
    """Yield the first of them; what decides on the way is asked by :mod:`amp_rules.plan.rank_decisions`."""
    if not distribution.exchanges:
        return
    program = distribution.program
    guards = GroupGuards(program)
    of_rank = {site.node for site in program.calls_to(GETS_RANK)}
    asks = program.closure(lambda node: node in of_rank)
    for call, body, scope in program.calls():
        if call not in distribution.exchanges:
            continue
        is_alone = distribution.reached.is_alone(Site(scope.module, scope, body, call))
        # An error is that of one process.
        is_alone = is_alone or any(
            isinstance(item, ast.ExceptHandler)
            for module, place in guards.ways(scope.module, call)
            for item in module.ancestors(place)
        )
        if is_alone or any(map(asks, guards.tests(scope.module, call))):
            yield declining.decline(
                declining.OWN_DISTRIBUTION,
                scope.module,
                call,
                f"`{scope.module.text(call)}` waits for all processes, and not all of them come there",
                "let every process come there, or write what one process does in its place",
            )
            return
