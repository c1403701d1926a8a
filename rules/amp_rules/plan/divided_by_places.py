"""Sums over the batches of one process that are divided by the place in the data which the loop has come to.

``total / (start + size)`` of ``for start in range(0, len(x), size)``: the place is one in the data of all processes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import notes
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.report import Note
from amp_rules.roles.sliced_batches import place_of
from amp_rules.source import blocks


def divided_by_places(processes: Distribution) -> Iterator[Note]:
    """Yield a note on the first such mean of each loop."""
    for loop in processes.loops:
        place = (
            place_of(loop.loop) if loop.use.slices is not None and loop.use.loader is loop.use.slices.range else None
        )
        if place is None:
            continue
        after = next(suite[index + 1 :] for suite, index in blocks.suites_around(loop.module, loop.loop))
        for node in [*loop.inner, *(node for item in after for node in blocks.walk_own(item))]:
            if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
                continue
            if place in blocks.reads(node.right) and not {*loop.sums}.isdisjoint(blocks.reads(node.left)):
                yield notes.note(
                    notes.TOTALS,
                    loop.module,
                    node,
                    f"`{loop.module.text(node)}` divides what the batches of one process add up to by `{place}`, which "
                    "goes through the data of all processes: it comes out about N times too small",
                )
                break
