"""Backward passes of which each process runs as many as its own share of the data gives."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Shares
from amp_rules.ranks.origins import Decision, Kind
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import COMPREHENSIONS, walk
from amp_rules.torch.distributed import EXCHANGES

_FILLING = frozenset({"append", "extend"})
_MAX_NAMES = 4
"""Variables between a list and the number of rounds: ``steps = len(samples) // size``."""


def rounds_apart(own: OwnDdp, shares: Shares) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the loop right around a backward pass whose rounds a process counts by what it finds in its own batches.

    A batch is as large on all processes, and so are its parts; what is chosen from it by a test is not.
    """
    told: set[ast.AST] = set()
    of_batches = {site.node for site in own.data.loops}
    for backward in own.program.backwards if own.wraps else ():
        if backward.module not in own.modules or backward.body in own.uncalled:
            continue
        around = [item for item in blocks.enclosing(backward.module, backward.node) if isinstance(item, blocks.LOOPS)]
        for loop in around[:-1]:  # the outermost goes over the epochs or the batches
            asked = loop.test if isinstance(loop, ast.While) else loop.iter
            if loop in of_batches or asked in told or is_exchanged(own, backward, around[-1]):
                continue
            if isinstance(loop, ast.While):
                is_apart = shares.decides(asked)
            else:
                is_apart = _is_counted_apart(shares, backward, loop)
            if is_apart:
                told.add(asked)
                text = (
                    f"`{backward.module.text(asked)}` gives each process as many rounds as there are in its own share "
                    "of the data: where one of them runs fewer backward passes, the others wait for it"
                )
                yield backward.module, asked, text


def is_exchanged(own: OwnDdp, site: Site, loop: ast.AST) -> bool:
    """Whether the processes tell each other anything within a loop: the number of rounds, for all that is known."""
    calls = {place.node for place in own.program.calls_to(EXCHANGES) if place.module is site.module}
    return any(node in calls for node in walk(loop))


def _is_counted_apart(shares: Shares, site: Site, loop: ast.For | ast.AsyncFor) -> bool:
    """Whether a loop goes over what tests on a process's batch have chosen, or as often as that is long."""
    if not any(origin.kind is Kind.BATCH for origin in shares.ranks.size_origins(loop.iter)):
        return False
    names = {path for path in blocks.reads(loop.iter) if path.isidentifier()}
    nodes = [node for node in blocks.walk_body(site.body) if getattr(node, "lineno", 0) <= loop.lineno]
    for _ in range(_MAX_NAMES):
        given = [node for node in nodes if isinstance(node, ast.Assign) and blocks.writes(node) & names]
        names |= {path for node in given for path in blocks.reads(node.value) if path.isidentifier()}
    values = [
        loop.iter,
        *(node.value for node in nodes if isinstance(node, ast.Assign) and blocks.writes(node) & names),
    ]
    return any(_chooses(shares, part) for value in values for part in walk(value)) or any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _FILLING
        and blocks.path_of(node.func.value) in names
        and any(not item.counts and comes_of_batch(item) for item in shares.ranks.decisions(node))
        for node in nodes
    )


def _chooses(shares: Shares, node: ast.AST) -> bool:
    """Whether a comprehension leaves out elements by a test on the batch."""
    return isinstance(node, COMPREHENSIONS) and any(
        shares.decides(test) for item in node.generators for test in item.ifs
    )


def comes_of_batch(decision: Decision) -> bool:
    """Whether a decision falls by what a process finds in its own batches."""
    return any(origin.kind is Kind.BATCH for origin in decision.origins)
