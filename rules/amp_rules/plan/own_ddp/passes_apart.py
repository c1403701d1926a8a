"""Forward passes through the wrapper that a process runs or leaves out by its own batches, in steps that all run.

``DistributedDataParallel`` broadcasts buffers before each pass, and synchronised batch norm exchanges statistics in it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from amp_rules.plan.own_ddp.forwards_of_one import sends_buffers
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rounds_apart import comes_of_batch, is_exchanged
from amp_rules.plan.own_ddp.shares import Shares
from amp_rules.plan.own_ddp.wrappers import wrapped_by
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk


def passes_apart(own: OwnDdp, shares: Shares) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such pass of each loop over batches: a step that is left out as a whole is told elsewhere."""
    wraps = [site for site in own.wraps if sends_buffers(own, site)]
    loops = {site.node: site for site in own.data.loops} if wraps else {}
    for node, loop in loops.items():
        if loop.module not in own.modules or loop.body in own.uncalled:
            continue
        backwards = [item for item in own.program.backwards if any(part is item.node for part in walk(node))]
        if backwards and not is_exchanged(own, backwards[0], node):
            found = _first_apart(own, shares, wraps, loop, backwards)
            if found is not None:
                call, test = found
                text = (
                    f"`{loop.module.text(test)}` depends on each process's own share of the data: where one runs "
                    f"`{loop.module.text(call)}` less often, the others wait for the buffers that the wrapper sends "
                    "before each pass"
                )
                yield loop.module, call, text


def _first_apart(
    own: OwnDdp, shares: Shares, wraps: list[Site], loop: Site, backwards: Sequence[Site]
) -> tuple[ast.Call, ast.expr] | None:
    """A pass within a loop, and the test that decides over it and over no backward pass there."""
    inner = set(walk(loop.node))
    of_steps: set[ast.AST] | None = None
    for call in (item for item in walk(loop.node) if isinstance(item, ast.Call)):
        if blocks.body_of(loop.module, call) is not loop.body or not own.program.called_models(call, loop.scope):
            continue
        if not _is_decided_on(loop, call) or own.program.without_gradients(loop.module, call, loop.body):
            continue
        if not wrapped_by(own, call.func, Site(loop.module, loop.scope, loop.body, call), wraps):
            continue
        if of_steps is None:
            of_steps = {item.node for step in backwards for item in shares.ranks.decisions(step.node)}
        for item in shares.ranks.decisions(call):
            if item.node in inner and item.node not in of_steps and not item.counts and comes_of_batch(item):
                if isinstance(item.node, ast.expr):
                    return call, item.node
    return None


def _is_decided_on(loop: Site, call: ast.Call) -> bool:
    """Whether a test or a loop stands around a call, within the loop over the batches."""
    for item in blocks.enclosing(loop.module, call):
        if item is loop.node:
            return False
        if isinstance(item, (ast.If, *blocks.LOOPS)):
            return True
    return False
