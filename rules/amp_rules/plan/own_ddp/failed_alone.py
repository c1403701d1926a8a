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


def failed_alone(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first handler in each function that goes on where a step of the wrapped model has failed."""
    if not own.wraps:
        return
    told: set[ast.AST] = set()
    for module, handler in swallowed_failures(own.program):
        located = own.program.locate(handler)
        if located is None or located[0] in told | own.uncalled or module not in own.modules:
            continue
        if own.reach(module, handler) is not Reach.EVERY or own.is_of_first_alone(module, handler):
            continue
        tried = module.parents[handler]
        assert isinstance(tried, ast.Try)
        if not _holds_a_round(own, module, tried):
            continue
        if not any(map(own.program.runs_backward, tried.body)):
            # Nobody waits in a backward pass yet: who meets the others behind a forward pass may tell them.
            loop = blocks.loop_around(module, tried)
            if any(isinstance(node, ast.Call) and own.runs_exchange(node) for node in walk(loop or located[0])):
                continue
        told.add(located[0])
        yield (
            module,
            handler,
            "where a step fails on one process alone, as for want of memory, that process goes on here: the others "
            "wait in their backward pass, and average gradients with what it runs next",
        )


def _holds_a_round(own: OwnDdp, module: Module, tried: ast.Try) -> bool:
    """Whether a ``try`` is of one step of the training: no trial of a batch's size, and no run of whole epochs."""
    loaders = {use.loader for use in own.data.uses}
    around = [item for item in blocks.enclosing(module, tried) if isinstance(item, (ast.For, ast.AsyncFor))]
    if any(not loaders.isdisjoint(walk(item.iter)) and own.program.runs_step(item) for item in around):
        return True
    inside = {part for item in tried.body for part in blocks.walk_own(item)}
    return any(site.node in inside for site in own.program.steps)
