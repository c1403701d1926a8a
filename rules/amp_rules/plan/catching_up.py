"""Counts in the loop over the batches that catch up with the epochs: ``if epoch > length * done: done += 1``.

They go up in the first steps of an epoch and then stay, however many steps follow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.source import blocks

_GREATER = (ast.Gt, ast.GtE)
_LESS = (ast.Lt, ast.LtE)
_GROWING = (ast.Add, ast.Mult)
_GROWING_ON_THE_LEFT = (ast.Sub, ast.Div, ast.FloorDiv)


def catches_up(loop: BatchLoop, branch: ast.If, path: str) -> bool:
    """Whether a variable that a branch counts up does so only while it is behind the epoch, which no round changes."""
    around = [item for item in blocks.enclosing(loop.module, loop.loop) if isinstance(item, ast.For)]
    epochs = {name for item in around for name in blocks.writes_target(item)}
    changed = {name for item in loop.inner for name in blocks.writes(item)} - {path}
    if isinstance(loop.loop, (ast.For, ast.AsyncFor)):
        changed |= blocks.writes_target(loop.loop)
    return any(
        _grows(behind, path)
        and path not in blocks.reads(ahead)
        and not epochs.isdisjoint(blocks.reads(ahead))
        and not blocks.touches(blocks.reads(ahead) | blocks.reads(behind), changed)
        for behind, ahead in _compared(branch.test)
    )


def _compared(test: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what has to be less for a test to hold, or equal, each with what it is compared to."""
    for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]:
        if not (isinstance(part, ast.Compare) and len(part.ops) == 1):
            continue
        if isinstance(part.ops[0], (*_LESS, ast.Eq)):
            yield part.left, part.comparators[0]
        if isinstance(part.ops[0], (*_GREATER, ast.Eq)):
            yield part.comparators[0], part.left


def _grows(node: ast.expr, path: str) -> bool:
    """Whether a number grows with a variable, as lengths and numbers of epochs are not negative."""
    if blocks.path_of(node) == path:
        return True
    if not isinstance(node, ast.BinOp):
        return False
    if isinstance(node.op, _GROWING) and path not in blocks.reads(node.left):
        return _grows(node.right, path)
    return (
        isinstance(node.op, (*_GROWING, *_GROWING_ON_THE_LEFT))
        and path not in blocks.reads(node.right)
        and _grows(node.left, path)
    )
