"""Steps that fail on one process, which goes on or tries them again: the others wait for it in theirs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.swallowed_failures import swallowed_failures
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.distributed import EXCHANGES


def failed_alone(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first handler in each function that goes on where a step of the wrapped model has failed."""
    if not own.wraps:
        return
    calls = {site.node for site in own.program.calls_to(EXCHANGES)}
    exchanges = own.program.closure(lambda node: node in calls)
    told: set[ast.AST] = set()
    for module, handler in swallowed_failures(own.program):
        located = own.program.locate(handler)
        if located is None or located[0] in told | own.uncalled or module not in own.modules:
            continue
        if own.reach(module, handler) is not Reach.EVERY or own.is_of_first_alone(module, handler):
            continue
        tried = module.parents[handler]
        assert isinstance(tried, ast.Try)
        if not any(map(own.program.runs_backward, tried.body)):
            # Nobody waits in a backward pass yet: who meets the others behind a forward pass may tell them.
            loop = blocks.loop_around(module, tried)
            if any(isinstance(node, ast.Call) and exchanges(node) for node in walk(loop or located[0])):
                continue
        told.add(located[0])
        yield (
            module,
            handler,
            "where a step fails on one process alone, as for want of memory, that process goes on here: the others "
            "wait in their backward pass, and average gradients with what it runs next",
        )
