"""Schedules as long as the batches of the whole data, of which each process runs a share."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Shares
from amp_rules.plan.whole_lengths import WholeLengths
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.kinds import is_scheduler
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk

_LENGTHS = frozenset({"T_max", "T_0", "total_steps", "total_iters", "num_training_steps"})
_OF_PROCESSES = ("world", "replica", "gpu", "device", "process", "rank", "node", "size_total", "global")
"""What a number of processes, or one that knows of it, is called."""

_MAX_DEPTH = 6


def whole_schedules(own: OwnDdp, shares: Shares) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the length of a schedule that is stepped once for each batch of a share."""
    schedules = [
        (call, scope)
        for call, _, scope in own.program.calls()
        if scope.module in own.modules
        and any(value.site is call and is_scheduler(value) for value in own.program.flow.values(call, scope))
    ]
    if not schedules:
        return
    shared = shares.metrics.shared_loaders
    uses = [use for use in own.data.uses if use.values and all(value.site in shared for value in use.values)]
    if not uses or any(_divides_batch(node) for node, _, _ in own.program.nodes()):
        return
    sizes = [given_to_loader(value.site, "batch_size") for use in uses for value in use.values]  # type: ignore[arg-type]
    if any(isinstance(node, (ast.BinOp, ast.Call)) for node in sizes):
        return
    lengths = WholeLengths(own.program, TrainingData(uses=uses))
    told: set[ast.AST] = set()
    for call, scope in schedules:
        for given in [*call.args[1:], *(item.value for item in call.keywords if item.arg in _LENGTHS)]:
            if lengths.count(given, scope) != "steps" or _knows_processes(lengths, given, scope, 0):
                continue
            if "warm" in ast.unparse(given).lower() or not _is_stepped_by_batch(own, lengths, call):
                continue
            for node, where in _counted_at(own, given, scope):
                if node not in told and lengths.count(node, where) == "steps":
                    told.add(node)
                    text = (
                        f"`{where.module.text(node)}` counts the batches of the whole data, and each of N processes "
                        "runs one N-th of them: the schedule does not get to its end; `len(loader)` is a process's own"
                    )
                    yield where.module, node, text


def _counted_at(own: OwnDdp, node: ast.expr, scope: Scope, depth: int = 0) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield where a length comes from: what callers give, where a function that makes the schedule is given it."""
    owner = scope.owner(node.id).node if isinstance(node, ast.Name) else None
    info = own.program.flow.functions.get(owner) if owner is not None else None
    if info is None or not isinstance(node, ast.Name) or node.id not in info.parameters or depth > _MAX_DEPTH:
        yield node, scope
        return
    for caller in own.program.flow.callers(info):
        given = info.argument_or_default(caller.call, node.id)
        if given is not None and caller.scope.module in own.modules:
            yield from _counted_at(own, given, caller.scope, depth + 1)


def _divides_batch(node: ast.AST) -> bool:
    """Whether a batch size is divided, by the number of processes for all that is known."""
    if not isinstance(node, (ast.Assign, ast.AugAssign)):
        return False
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    divides = isinstance(node, ast.AugAssign) or any(isinstance(item, ast.BinOp) for item in walk(node.value))
    return divides and isinstance(target, (ast.Name, ast.Attribute)) and "batch" in last_name(target).lower()


def _knows_processes(lengths: WholeLengths, node: ast.expr, scope: Scope, depth: int) -> bool:
    """Whether an expression, or what its variables are made of, is about the number of processes."""
    for part in walk(node):
        if not isinstance(part, (ast.Name, ast.Attribute)):
            continue
        if any(word in last_name(part).lower() for word in _OF_PROCESSES):
            return True
        key = lengths.program.flow.key(part, scope)
        if key is not None and depth < _MAX_DEPTH:
            for value, where in lengths.assigned.get(key, ()):
                if _knows_processes(lengths, value, where, depth + 1):
                    return True
    return False


def _is_stepped_by_batch(own: OwnDdp, lengths: WholeLengths, made: ast.Call) -> bool:
    training = {site.node for site in own.data.loops}  # over a bar of a loader, too
    for call, _, scope in own.program.calls():
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
            continue
        if not any(value.site is made for value in own.program.flow.values(call.func.value, scope)):
            continue
        loop = blocks.loop_around(scope.module, call)
        if isinstance(loop, ast.For) and (
            loop in training
            or any(isinstance(it, (ast.Name, ast.Attribute)) and lengths.holds(it, scope) for it in walk(loop.iter))
        ):
            return True
    return False
