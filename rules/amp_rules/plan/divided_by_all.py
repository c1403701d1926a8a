"""Sums of one process's batches that an object keeps, and that a method divides by the length of all data.

A loop calls ``run.count(loss, batch)``, which adds to ``self.total``, and ``run.end()`` tells
``self.total / len(self.loader.dataset)``: a mean in one process, and 1/N of it in N.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.distribution import Distribution
from amp_rules.plan.rank_numbers import Told
from amp_rules.plan.training_loops import added_to, variable
from amp_rules.ranks.origins import Kind
from amp_rules.roles.sites import Site

_DIVIDES = (
    "divides what the batches of one process add up to by the length of all data: with N processes it is about 1/N",
    "divide what the batches of one process add up to by the length of all data: with N processes they are about 1/N",
)
_OWN = "self."


def divided_by_all(processes: Distribution) -> Iterator[Told]:
    """Yield such quotients, but for those of which the sum is reduced."""
    program, ranks = processes.program, processes.agreed.ranks
    reduced = {item.node for item in processes.sums.here}
    reduced_after = {(item.place.body, item.path) for item in processes.sums.after}
    added = {(path, body) for node, body, _ in program.nodes() for path in added_to(node) if path.startswith(_OWN)}
    for node, body, scope in program.nodes():
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)) or node.left in reduced:
            continue
        path = variable(node.left)
        if path is None or (body, path) in reduced_after:
            continue
        if not any(path == one and other is not body for one, other in added):
            continue
        if processes.whole_lengths.count(node.right, scope) != "samples":
            continue
        if any(origin.kind is Kind.BATCH for origin in ranks.own_origins(node.left)):
            yield Told(Site(scope.module, scope, body, node), scope.module.text(node), *_DIVIDES)
