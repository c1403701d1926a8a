"""Learning rates that each process sets by numbers of its own share of the data."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Shares
from amp_rules.plan.sinks import Need, Sink, Sinks
from amp_rules.ranks.origins import Kind
from amp_rules.roles.kinds import is_scheduler
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name
from amp_rules.torch.optimizers import GROUP_SETTINGS


def rates_apart(own: OwnDdp, shares: Shares) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield them: what a schedule is told, and what is assigned to a parameter group; the first of each function."""
    if not own.wraps or not _sets_rates(own) or not shares.loaders:
        return
    told: set[ast.AST] = set()
    sinks = [sink for sink in Sinks(own.program, forwards=False).find(shares.ranks, frozenset()) if _is_of_batch(sink)]
    if any(_counts_epochs(own, sink) for sink in sinks):
        return  # settings are not told from batches: processes with numbers of epochs of their own would hang
    # A schedule that is told nothing at a place is another one there, or was told at another.
    for sink in sorted(sinks, key=_is_of_object):
        module, body = sink.module, blocks.body_of(sink.module, sink.node)
        if body in told or module not in own.modules or not _is_rate(own, sink):
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


def _is_of_batch(sink: Sink) -> bool:
    """Whether something is made of batches. What is of clocks as well is one of settings that were not followed."""
    kinds = {origin.kind for origin in sink.origins}
    return Kind.BATCH in kinds and kinds.isdisjoint({Kind.CLOCK, Kind.PROCESS})


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
        if _is_setting(node) and isinstance(getattr(node, "ctx", None), ast.Store):
            return True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step":
            if node.args and any(map(is_scheduler, own.program.flow.values(node.func.value, scope))):
                return True
    return False


def _is_setting(node: ast.AST | None) -> bool:
    """Whether something is a setting of a parameter group, as its name says: ``group["lr"]``."""
    return (
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value in GROUP_SETTINGS
    )
