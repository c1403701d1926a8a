"""Epochs of some first batches: as many steps as in one process.

``for x, y in itertools.islice(loader, 12)``, and ``if step >= 12: break`` in a loop that each epoch begins anew.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.counts_of_loaders import of_loader
from amp_rules.plan.distribution import Distribution
from amp_rules.roles.loaders import is_loader
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.syntax import is_none, walk

_SLICE = "itertools.islice"
_CYCLE = frozenset({"itertools.cycle"})


def slices(program: Program, processes: Distribution, loop: BatchLoop) -> Iterator[ast.Call]:
    """Yield what takes so many batches of what the loop goes over, where the number comes of no loader's length."""
    over = loop.loop.iter if isinstance(loop.loop, (ast.For, ast.AsyncFor)) else None
    for node in walk(over) if over is not None else ():
        if not (isinstance(node, ast.Call) and _SLICE in program.callee_names(node, loop.scope)):
            continue
        end = node.args[1] if len(node.args) == 2 else node.args[2] if len(node.args) > 2 else None
        if end is not None and not is_none(end) and not of_loader(program, processes, end, loop.scope):
            yield node


def of_share(program: Program, loop: BatchLoop, call: ast.Call) -> bool:
    """Whether a slice is one of the loader itself, which ends with the share of the process: of no endless iterator."""
    if program.calls_to(_CYCLE):
        return False
    return any(map(is_loader, program.flow.values(call.args[0], loop.scope)))


def leaving(program: Program, processes: Distribution, loop: BatchLoop) -> ast.If | None:
    """The test that ends each epoch behind some first batches, by a count that begins with the epoch.

    None where a number of steps ends the training, where the count is of a loader's length, and where an option beside
    it may leave all batches in, as ``args.debug and step > 5`` does.
    """
    if not any(item.node is not loop.loop for item in processes.batches.loops_of(loop)):
        return None
    for node in loop.inner:
        if isinstance(node, ast.If) and any(isinstance(item, ast.Break) for item in node.body):
            is_own = blocks.loop_around(loop.module, node) is loop.loop and loop.module.parents[node] is loop.loop
            if is_own and _counts_batches(program, processes, loop, node.test):
                return node
    return None


def _counts_batches(program: Program, processes: Distribution, loop: BatchLoop, test: ast.expr) -> bool:
    """Whether a test compares the count of an epoch's batches to a number, and asks of nothing else."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    counts = [part for part in parts if isinstance(part, ast.Compare) and blocks.reads(part) & loop.of_epoch]
    if len(counts) != 1 or not isinstance(counts[0].ops[0], (ast.Gt, ast.GtE, ast.Eq)):
        return False
    (count,) = counts
    read = blocks.reads(count)
    return all(blocks.reads(part) <= read for part in parts) and not any(
        of_loader(program, processes, side, loop.scope)
        for side in (count.left, *count.comparators)
        if not blocks.reads(side) & loop.counters
    )
