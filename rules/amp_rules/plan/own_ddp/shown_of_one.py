"""Sums and meters of the batches of one process that a script shows, and that nothing reduces."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.meters import meters_of
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Shares
from amp_rules.plan.rank_averages import is_shown
from amp_rules.plan.training_loops import TrainingLoop, added_to, variable
from amp_rules.ranks.origins import Kind
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import is_text, walk


def shown_of_one(own: OwnDdp, shares: Shares) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such sum of each loop that trains, with the names of the others."""
    metrics = shares.metrics
    if metrics.looked_after:
        return
    loops = [loop for loop in metrics.training_loops if not metrics.may_be_of_all(loop.body)]
    # Numbers that could be reduced, and are not, have a note of their own.
    noted = {item.site.body for item in metrics.found()} if loops else set()
    for loop in loops:
        if loop.body in noted:
            continue
        added = {path: node for node in walk(loop.loop) for path in _sums(node) if _is_of_batch(shares, node)}
        for path, *_ in meters_of(own.program, loop):
            added.setdefault(path, loop.loop)
        names = [path for path in added if _is_told(loop, path)]
        if names:
            quoted = [f"`{name}`" for name in names]
            listed = " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)
            verb, its = ("add up", "their") if len(names) > 1 else ("adds up", "its")
            text = f"AMP233: {listed} {verb} the batches of one process"
            yield (
                loop.module,
                added[names[0]],
                f"{text}: {its} averages that are shown cover only that share of the data",
            )


def _sums(node: ast.AST) -> Iterator[str]:
    """Yield what a statement adds a number to, and no text."""
    if isinstance(node, (ast.AugAssign, ast.Assign)) and not is_text(node.value):
        yield from added_to(node)


def _is_of_batch(shares: Shares, node: ast.AST) -> bool:
    value = node.value if isinstance(node, (ast.AugAssign, ast.Assign)) else None
    return value is not None and any(origin.kind is Kind.BATCH for origin in shares.ranks.origins(value))


def _held(node: ast.Name | ast.Attribute | ast.Subscript) -> str | None:
    """What holds a number: of ``losses.avg`` the meter."""
    is_average = isinstance(node, ast.Attribute) and node.attr in ("avg", "average", "global_avg", "val")
    return variable(node.value if is_average and isinstance(node, ast.Attribute) else node)


def _is_told(loop: TrainingLoop, path: str) -> bool:
    """Whether the function shows a sum from its loop on, or what it is divided to."""
    nodes = [node for node in blocks.walk_body(loop.body) if getattr(node, "lineno", 0) >= loop.line]
    names = {path}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Div):
            if any(variable(part) == path for part in walk(node.value.left)):
                names |= blocks.writes(node)
    return any(
        isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))
        and isinstance(node.ctx, ast.Load)
        and _held(node) in names
        and is_shown(loop, node)
        for node in nodes
    )
