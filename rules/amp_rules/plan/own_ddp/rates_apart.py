"""Learning rates that each process sets by numbers of its own share of the data, and those that one sets alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from amp_rules.plan.own_ddp.meters_shown import behind
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Shares
from amp_rules.plan.sinks import Need, Sink, Sinks
from amp_rules.plan.summed_terms import is_of_batch
from amp_rules.plan.training_loops import added_to
from amp_rules.ranks.origins import Kind
from amp_rules.roles.kinds import is_optimizer, is_scheduler
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.optimizers import GROUP_SETTINGS


def rates_apart(own: OwnDdp, shares: Shares) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield them: what a schedule is told, and what is assigned to a parameter group; the first of each function."""
    if not own.wraps or not _sets_rates(own) or not shares.loaders:
        return
    told: set[ast.AST] = set()
    found = Sinks(own.program, forwards=False).find(shares.ranks, frozenset())
    sinks = [sink for sink in found if _is_of_batch(sink) or _is_told_sum(shares, sink)]
    if any(_counts_epochs(own, sink) for sink in sinks):
        return  # settings are not told from batches: processes with numbers of epochs of their own would hang
    # A schedule that is told nothing at a place is another one there, or was told at another. What is added up there
    # is surely of the share.
    for sink in sorted(sinks, key=lambda sink: (_is_of_object(sink), not _is_told_sum(shares, sink))):
        module, body = sink.module, blocks.body_of(sink.module, sink.node)
        if body in told or module not in own.modules or not _is_rate(own, sink) or _is_flag(own, sink.node, body):
            continue
        if shares.metrics.may_be_of_all(body):
            continue
        if own.is_of_first_alone(module, sink.what):
            continue
        told.add(body)
        yield (
            module,
            sink.node,
            f"`{module.text(sink.node)}` depends on each process's own share of the data, and sets the learning rate: "
            "the processes train with different ones",
        )


def set_by_one(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield a setting of parameter groups that one process changes alone; the first of each function."""
    told: set[ast.AST] = set()
    for node, body, scope in own.program.nodes():
        if not _is_setting(node) or not isinstance(node.ctx, ast.Store):
            continue
        groups = _groups_of(scope.module, node) if scope.module in own.modules and body not in told else None
        if groups is None:
            continue
        if own.is_of_first_alone(scope.module, node) and not _is_made_alone(own, groups, scope):
            told.add(body)
            name = scope.module.text(node)
            text = f"only one process sets `{name}`: those that the others train with differ from then on"
            yield scope.module, node, text


def _groups_of(module: Module, node: ast.Subscript) -> ast.Attribute | None:
    """``optimizer.param_groups`` of ``group["lr"]`` in a loop over them, and of ``optimizer.param_groups[0]["lr"]``."""
    owner = node.value
    if isinstance(owner, ast.Name):
        loops = [item for item in blocks.enclosing(module, node) if isinstance(item, ast.For)]
        given = [item.iter for item in loops if owner.id in blocks.writes_target(item)]
    else:
        given = [owner]
    parts = (part for item in given for part in walk(item))
    return next((part for part in parts if isinstance(part, ast.Attribute) and part.attr == "param_groups"), None)


def _is_made_alone(own: OwnDdp, groups: ast.Attribute, scope: Scope) -> bool:
    """Whether the first process alone has the optimizer, or what it is was not found."""
    sites = [value.site for value in own.program.flow.values(groups.value, scope) if is_optimizer(value)]
    places = [(own.program.module_of(site), site) for site in sites if site is not None]
    if not places or len(places) < len(sites):
        return True
    return any(module is None or own.is_of_first_alone(module, site) for module, site in places)


def _is_of_batch(sink: Sink) -> bool:
    """Whether something is made of batches. What is of clocks as well is one of settings that were not followed."""
    kinds = {origin.kind for origin in sink.origins}
    return Kind.BATCH in kinds and kinds.isdisjoint({Kind.CLOCK, Kind.PROCESS})


def _is_told_sum(shares: Shares, sink: Sink) -> bool:
    """Whether a schedule is told what a loop of its function adds up of batches, whatever else the settings hold."""
    if sink.need is not Need.RATE or _is_of_object(sink):
        return False
    body = blocks.body_of(sink.module, sink.node)
    nodes = [*blocks.walk_body(body)]
    loops = [loop for loop in shares.metrics.training_loops if loop.body is body]
    sums = {
        path
        for loop in loops
        for node in loop.inner
        if isinstance(node, (ast.AugAssign, ast.Assign)) and is_of_batch(node.value, shares.ranks)
        for path in added_to(node)
    }
    return blocks.touches(behind(nodes, blocks.reads(sink.node)), sums)


def _is_flag(own: OwnDdp, node: ast.expr, body: ast.AST) -> bool:
    """Whether a test asks for settings and flags alone: the numbers of a batch say at most how long they are asked."""
    reads = [part for part in walk(node) if isinstance(part, (ast.Name, ast.Attribute)) and _is_read(part)]
    if not isinstance(node, (ast.Name, ast.Attribute, ast.UnaryOp, ast.BoolOp)):
        return False
    if any(not isinstance(part, _OF_FLAGS) for part in walk(node)):
        return False
    stored = {item.attr for item, _, _ in own.program.nodes() if isinstance(item, ast.Attribute) and not _is_read(item)}
    for part in reads:
        if isinstance(part, ast.Attribute):
            if part.attr in stored:
                return False
        elif not any(isinstance(item, ast.Attribute) and item.value is part for item in reads):
            given = [value for item in blocks.walk_body(body) for value in _given(item, part.id)]
            if not given or not all(isinstance(value, ast.Constant) for value in given):
                return False
    return True


def _given(node: ast.AST, name: str) -> Iterator[ast.expr | None]:
    """Yield what a statement gives a variable; None where it is no plain value."""
    if not isinstance(node, ast.stmt) or isinstance(node, _AROUND) or name not in blocks.writes(node):
        return
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    value = node.value if isinstance(node, ast.Assign) else None
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = zip(target.elts, value.elts, strict=True)
        yield from (item for part, item in pairs if isinstance(part, ast.Name) and part.id == name)
    else:
        yield value if isinstance(target, ast.Name) else None


_OF_FLAGS = (ast.Name, ast.Attribute, ast.UnaryOp, ast.BoolOp, ast.boolop, ast.unaryop, ast.expr_context)
_AROUND = (ast.If, ast.For, ast.While, ast.With, ast.Try)


def _is_read(node: ast.Name | ast.Attribute) -> bool:
    """Whether a variable is read where it stands."""
    return isinstance(node.ctx, ast.Load)


def _is_of_object(sink: Sink) -> bool:
    """Whether what differs is the schedule that is stepped, and nothing that it is told."""
    call = sink.what
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and sink.node is call.func.value


def _counts_epochs(own: OwnDdp, sink: Sink) -> bool:
    """Whether something is the number of rounds of a loop that trains: ``range(start_epoch, settings["epochs"])``."""
    loop = sink.module.parents.get(sink.node)
    is_range = isinstance(sink.node, ast.Call) and last_name(sink.node.func) in ("range", "trange")
    return is_range and isinstance(loop, ast.For) and own.program.runs_backward(loop)


def _is_rate(own: OwnDdp, sink: Sink) -> bool:
    if sink.need is Need.RATE:
        return True
    what = sink.what
    tests = [item.test for item in blocks.enclosing(sink.module, what) if isinstance(item, ast.If)]
    if sink.node not in tests:
        return False  # what leaves a loop above is told by itself
    if isinstance(what, ast.Call) and isinstance(what.func, ast.Attribute) and what.func.attr == "step":
        return any(map(is_scheduler, own.program.flow.values(what.func.value, sink.scope)))
    targets = what.targets if isinstance(what, ast.Assign) else [getattr(what, "target", None)]
    return any(map(_is_setting, targets))


def _sets_rates(own: OwnDdp) -> bool:
    """Whether the program tells a schedule anything, or writes into parameter groups."""
    for node, _, scope in own.program.nodes():
        if _is_setting(node) and isinstance(node.ctx, ast.Store):
            return True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step":
            if node.args and any(map(is_scheduler, own.program.flow.values(node.func.value, scope))):
                return True
    return False


def _is_setting(node: ast.AST | None) -> TypeGuard[ast.Subscript]:
    """Whether something is a setting of a parameter group, as its name says: ``group["lr"]``."""
    return (
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value in GROUP_SETTINGS
    )
