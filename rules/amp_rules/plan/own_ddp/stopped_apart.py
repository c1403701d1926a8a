"""Training that a process ends by its own share of the data, while the others wait for it in the wrapper."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.metrics import Metrics
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.samplers import sampler_of
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.origins import Kind
from amp_rules.ranks.world import Setting
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS

_Found = tuple[Module, ast.AST, str]


def stopped_apart(own: OwnDdp) -> Iterator[_Found]:
    """Yield what leaves a training loop under a test of numbers that each process has of its own batches."""
    leaving = list(_leaving(own)) if own.wraps else []
    if not leaving:
        return
    metrics = Metrics(own)
    leaving = [item for item in leaving if not metrics.may_be_of_all(blocks.body_of(item[0], item[1]))]
    shared = metrics.shared_loaders | frozenset(_shared_by_own_samplers(own)) if leaving else frozenset()
    if not shared:
        return
    ranks = Ranks(own.program, Setting(prepared=shared))
    told: set[ast.AST] = set()
    for module, node, test, loop in leaving:
        # Behind a loop that was left apart, what it counts differs too.
        if loop not in told and any(origin.kind is Kind.BATCH for origin in ranks.truth_origins(test)):
            told.add(loop)
            yield (
                module,
                node,
                f"`{module.text(test)}` depends on each process's own share of the data: one process leaves the "
                "training loop first, and the others wait for it",
            )


def _leaving(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, ast.expr, ast.stmt]]:
    """Yield what leaves a loop of epochs, with the test right around it and the loop.

    Within an epoch a test may ask for the size of a batch, which shares of one length have alike.
    """
    loaders = {use.loader for use in own.data.uses}
    for node, _, scope in own.program.nodes():
        module = scope.module
        if not isinstance(node, ast.Break) or module not in own.modules or own.is_of_first_alone(module, node):
            continue
        branch = module.parents[node]
        loop = next((item for item in blocks.enclosing(module, node) if isinstance(item, blocks.LOOPS)), None)
        if not isinstance(branch, ast.If) or loop is None or not own.program.runs_backward(loop):
            continue
        if not isinstance(loop, ast.For) or loaders.isdisjoint(walk(loop.iter)):
            yield module, node, branch.test, loop


def _shared_by_own_samplers(own: OwnDdp) -> Iterator[ast.AST]:
    """Yield the loaders whose sampler is of a class of the project that derives from torch's."""
    for use in [*own.data.uses, *own.data.evaluated]:
        for value in use.values:
            located = own.program.locate(value.site) if isinstance(value.site, ast.Call) else None
            given = sampler_of(value.site) if isinstance(value.site, ast.Call) else None
            if located is None or given is None or value.site is None:
                continue
            values = own.program.flow.values(given, located[1])
            if any(item.kind == "instance" and item.ref.external_bases() & DISTRIBUTED_SAMPLERS for item in values):
                yield value.site
