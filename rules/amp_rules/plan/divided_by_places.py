"""Sums over the batches of one process that are divided by what counts in the data of all.

``total / (start + size)`` of ``for start in range(0, len(x), size)``, and the number of batches that ends a range.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import notes
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.report import Note
from amp_rules.plan.training_loops import TrainingLoop
from amp_rules.roles.loaders import Slices
from amp_rules.roles.sliced_batches import place_of
from amp_rules.source import blocks


def divided_by_places(processes: Distribution) -> Iterator[Note]:
    """Yield a note on the first such mean of each loop."""
    for loop in processes.loops:
        slices = loop.use.slices
        if slices is None or slices.range is not loop.use.loader:
            continue
        where, sums = blocks.place(loop.module, loop.loop), {*loop.sums}
        after = where.suite[where.index + 1 :]
        for node in [*loop.inner, *(node for item in after for node in blocks.walk_own(item))]:
            if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
                continue
            whole = None if sums.isdisjoint(blocks.reads(node.left)) else _whole(processes, loop, slices, node.right)
            if whole is not None:
                yield notes.note(
                    notes.TOTALS,
                    loop.module,
                    node,
                    f"`{loop.module.text(node)}` divides what the batches of one process add up to by `{whole}`, which "
                    "counts in the data of all processes: it comes out about N times too small",
                )
                break


def _whole(processes: Distribution, loop: TrainingLoop, slices: Slices, node: ast.expr) -> str | None:
    """What counts in the whole data, of what a sum is divided by: the place, or the number of batches of the range."""
    read = blocks.reads(node)
    place = place_of(loop.loop)
    if place is not None and place.id in read:
        return place.id
    size = blocks.reads(slices.size) if slices.size is not None else set()
    named = read & (blocks.reads(loop.use.loader) - size)
    return min(named) if named and processes.whole_lengths.count(node, loop.scope) == "steps" else None
