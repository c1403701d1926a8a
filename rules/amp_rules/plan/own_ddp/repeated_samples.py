"""Evaluations whose sums over the processes hold samples twice: torch's sampler gives every process as many."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Shares
from amp_rules.plan.training_loops import TrainingLoop
from amp_rules.source import blocks
from amp_rules.source.index import argument_at, keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS

_DROP_LAST = 5  # dataset, num_replicas, rank, shuffle, seed, drop_last


def repeated_samples(own: OwnDdp, shares: Shares) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield each sampler that repeats samples for an evaluation whose numbers are added up over the processes."""
    if shares.metrics.looked_after:
        return
    evaluated = {use.node for use in own.data.evaluated}
    told: set[ast.AST] = set()
    samplers = {site.node: site for site in own.program.calls_to(DISTRIBUTED_SAMPLERS)}
    for loop in shares.metrics.loops if samplers else ():
        if loop.use.node not in evaluated or own.program.runs_backward(loop.loop) or not _adds_up(own, shares, loop):
            continue
        for call in shares.metrics.samplers_of(loop.use):
            site = samplers.get(call)
            if site is None or call in told or site.module not in own.modules or _is_even(call, site.body):
                continue
            told.add(call)
            text = (
                f"`{site.module.text(call)}` gives every process equally many samples: unless their number is a "
                "multiple of that of the processes, it repeats some, and what the evaluation adds up over the "
                "processes counts those twice"
            )
            yield site.module, call, text


def _adds_up(own: OwnDdp, shares: Shares, loop: TrainingLoop) -> bool:
    """Whether the function of a loop adds numbers up over the processes, but for what a model does in its passes."""
    adds = shares.metrics.exchanges.adds_up
    return any(
        isinstance(node, ast.Call) and adds(node) and not own.program.called_models(node, loop.scope)
        for node in blocks.walk_body(loop.body)
    )


def _is_even(call: ast.Call, body: ast.AST) -> bool:
    """Whether a sampler leaves out what is over, or the script asks there itself whether something is."""
    drops = argument_at(call, "drop_last", _DROP_LAST)
    if keyword(call, "drop_last") is not None and literal(drops) is not False:
        return True
    return any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and any(map(_is_length, walk(node.left)))
        for node in blocks.walk_body(body)
    )


def _is_length(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"
