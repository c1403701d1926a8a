"""Objects that keep an average of each number that they are told by name: ``logger.update(loss=loss.item())``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import ClassInfo
from amp_rules.plan.clock_times import is_time
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Shares
from amp_rules.plan.summed_terms import is_of_batch
from amp_rules.plan.training_loops import SHOWING, TrainingLoop
from amp_rules.plan.ways_to_show import is_shown
from amp_rules.source import blocks
from amp_rules.source.syntax import last_name, walk


def shown_loggers(own: OwnDdp, shares: Shares, loop: TrainingLoop) -> Iterator[str]:
    """Yield the variables of such objects that a loop tells of its batches, and that the function shows as they are."""
    told = {path for node in loop.inner for path in _told(own, shares, loop, node)}
    for path in sorted(told):
        if _is_shown(own, loop, path) and not shares.metrics.may_tell_of(loop.body, path):
            yield path


def _told(own: OwnDdp, shares: Shares, loop: TrainingLoop, node: ast.AST) -> Iterator[str]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "update":
        return
    path = blocks.path_of(node.func.value)
    given = [item.value for item in node.keywords if not is_time(own.program, loop, item.value)]
    values = own.program.flow.values(node.func.value, loop.scope) if path is not None and given else set()
    if path is None or not values or not all(value.kind == "instance" and _keeps(value.ref) for value in values):
        return
    if any(is_of_batch(item, shares.ranks) for item in given):
        yield path


def _keeps(info: ClassInfo) -> bool:
    """Whether ``update`` goes through all that it is told by name, and tells each to a meter."""
    update = info.find_method("update")
    named = getattr(update.node, "args", None) if update is not None else None
    if update is None or named is None or named.kwarg is None:
        return False
    return any(
        isinstance(node, ast.Call) and last_name(node.func) == "update" and bool(node.args)
        for node in blocks.walk_body(update.node)
    )


def _is_shown(own: OwnDdp, loop: TrainingLoop, path: str) -> bool:
    """Whether the function shows such an object from its loop on, or an own method does that in each round."""
    for node in walk(loop.loop.iter):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if blocks.path_of(node.func.value) == path and any(
                isinstance(part, ast.Call) and last_name(part.func) in SHOWING
                for info in own.program.flow.callees(node)
                for part in blocks.walk_body(info.node)
            ):
                return True
    return any(
        isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and blocks.path_of(node) == path
        and getattr(node, "lineno", 0) >= loop.line
        and is_shown(loop, node)
        for node in blocks.walk_body(loop.body)
    )
