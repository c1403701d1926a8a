"""Data beside the loader that a loop looks up by the number of its batch: ``labels[i]`` of ``enumerate(loader)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.carried_state import is_shuffled
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.kept_numbers import made_of_batch
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import called_name, values_given, walk


@dataclass(frozen=True)
class LookedUp(Site):
    """An expression that takes what belongs to a batch out of other data.

    Attributes:
        counter: what counts the batches.
    """

    counter: str


def looked_up_by_place(processes: Distribution) -> Iterator[LookedUp]:
    """Yield what losses are made of and that is looked up by the number of the batch, where batches come in order.

    A process counts the batches of its own share. What only scales a loss, the value of a schedule, goes by the number
    of the step in any order; it is compared with nothing.
    """
    told: set[ast.AST] = set()
    for site in processes.data.loops:
        loop = site.node
        if not isinstance(loop, (ast.For, ast.AsyncFor)) or loop in told:
            continue
        told.add(loop)
        taken = set(walk(loop.iter))
        uses = [use for use in processes.data.uses if use.loader in taken]
        if not uses or all(is_shuffled(processes.program, use) for use in uses):
            continue
        place = BatchLoop(site.module, site.scope, site.body, loop, loop)
        counters = _counters(place)
        if counters:
            yield from _in_loop(processes, place, counters)


def _counters(loop: BatchLoop) -> set[str]:
    """What counts the batches of an epoch; what a range over the places in the data gives is part of the share."""
    assert isinstance(loop.loop, (ast.For, ast.AsyncFor))
    calls = {called_name(node) for node in walk(loop.loop.iter) if isinstance(node, ast.Call)}
    return loop.of_epoch if "enumerate" in calls else loop.of_epoch - loop.head


def _in_loop(processes: Distribution, loop: BatchLoop, counters: set[str]) -> Iterator[LookedUp]:
    looked_up = list(_looked_up(loop, counters))
    if looked_up:
        needed, made = _made_into_losses(processes, loop), made_of_batch(processes, loop)
        yield from (item for item in looked_up if _is_compared(loop, item.node, needed, made))


def _looked_up(loop: BatchLoop, counters: set[str]) -> Iterator[LookedUp]:
    """What a loop takes, by the number of the batch, out of data that it does not write."""
    written = {path for node in loop.inner if isinstance(node, ast.stmt) for path in blocks.writes(node)}
    for node in loop.inner:
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
            continue
        table, read = blocks.path_of(node.value), blocks.reads(node.slice) & counters
        if table is None or table.partition(".")[0] in written or not read or _goes_round(node.slice):
            continue
        yield LookedUp(loop.module, loop.scope, loop.body, node, min(read))


def _goes_round(index: ast.expr) -> bool:
    """``i % 4``: in turns, and not one for each batch."""
    return any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) for part in walk(index))


def _made_into_losses(processes: Distribution, loop: BatchLoop) -> set[ast.stmt]:
    """The statements of a loop that its losses are made by."""
    inside = set(loop.inner)
    backwards = [site for site in processes.program.backwards if site.node in inside]
    wanted = {path for site in backwards for path in blocks.reads(site.loss)}
    found = {blocks.statement_of(loop.module, site.node) for site in backwards}
    statements = [node for node in loop.inner if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign))]
    while True:
        more = [node for node in statements if node not in found and node.value and blocks.writes(node) & wanted]
        if not more:
            return found
        found.update(more)
        wanted |= {path for node in more if node.value for path in blocks.reads(node.value)}


def _is_compared(loop: BatchLoop, node: ast.AST, needed: set[ast.stmt], made: set[str]) -> bool:
    """Whether what is looked up goes into a loss together with what is made of the batch, under any name."""
    pending, seen = [node], set()
    while pending:
        read = pending.pop()
        statement = blocks.statement_of(loop.module, read)
        if statement not in needed:
            continue
        value = _with_methods(loop, read)
        if _stands_beside(loop, value, made):
            return True
        target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is value else None
        if isinstance(target, ast.Name) and target.id not in seen:
            seen.add(target.id)
            pending += [
                item
                for item in loop.inner
                if isinstance(item, ast.Name) and item.id == target.id and isinstance(item.ctx, ast.Load)
            ]
    return False


def _with_methods(loop: BatchLoop, node: ast.AST) -> ast.AST:
    """What an expression becomes by its own methods and parts: ``labels[i].to(device).view(-1)``."""
    for parent in loop.module.ancestors(node):
        is_owner = isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is node
        if not (is_owner or (isinstance(parent, ast.Call) and parent.func is node)):
            break
        node = parent
    return node


def _stands_beside(loop: BatchLoop, value: ast.AST, made: set[str]) -> bool:
    """Whether a call takes a value beside what is made of the batch, or one is subtracted from the other."""
    parent = loop.module.parents.get(value)
    if isinstance(parent, ast.keyword):
        parent = loop.module.parents.get(parent)
    if isinstance(parent, ast.Call):
        return any(blocks.reads(item) & made for item in values_given(parent) if item is not value)
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Sub):
        return bool(blocks.reads(parent.left if parent.right is value else parent.right) & made)
    return False
