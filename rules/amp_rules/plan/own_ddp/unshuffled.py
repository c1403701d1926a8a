"""Shares of training data in one order for ever, where a run of one process shuffles."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import in_several
from amp_rules.flow.values import Value
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.samplers import is_shuffled, sampler_of
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.source import blocks
from amp_rules.source.index import argument_at, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import is_none
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS

_SHUFFLE = 3
"""The place of ``shuffle`` among the arguments of torch's sampler."""


def unshuffled(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield each sampler of a loader that trains, where it keeps the order and that loader shuffles without it."""
    samplers = {site.node: site for site in own.program.calls_to(DISTRIBUTED_SAMPLERS) if _keeps_order(site.node)}
    told: set[ast.AST] = set()
    for value in {value for use in own.data.uses for value in use.values} if samplers else ():
        if not _shuffles_alone(value) or is_shuffled(own, value):
            continue
        for sampler in _samplers(own, value):
            site = samplers.get(sampler)
            if site is not None and sampler not in told and site.module in own.modules:
                told.add(sampler)
                text = f"`{site.module.text(sampler)}` shuffles nothing, and a run of one process does"
                text += ": each process trains on its share in one order, the same in every epoch; `shuffle=True`, and"
                yield site.module, sampler, f"{text} `set_epoch` in each epoch, do as that run does"


def _keeps_order(sampler: ast.AST) -> bool:
    assert isinstance(sampler, ast.Call)
    given = argument_at(sampler, "shuffle", _SHUFFLE)
    return given is not None and literal(given) is False


def _shuffles_alone(loader: Value) -> bool:
    """Whether a loader shuffles where it has no sampler: ``shuffle=sampler is None``, ``shuffle=not several``."""
    given = given_to_loader(loader.site, "shuffle") if isinstance(loader.site, ast.Call) else None
    sampler = sampler_of(loader.site) if isinstance(loader.site, ast.Call) else None
    if given is None or sampler is None:
        return False
    if in_several(given) is False:
        return True
    if isinstance(given, ast.Compare) and isinstance(given.ops[0], ast.Is) and is_none(given.comparators[0]):
        return blocks.path_of(sampler) is not None and blocks.path_of(given.left) == blocks.path_of(sampler)
    if isinstance(sampler, ast.IfExp) and is_none(sampler.orelse) and isinstance(given, ast.UnaryOp):
        return isinstance(given.op, ast.Not) and ast.unparse(given.operand) == ast.unparse(sampler.test)
    return False


def _samplers(own: OwnDdp, loader: Value) -> Iterator[ast.AST]:
    located = own.program.locate(loader.site) if isinstance(loader.site, ast.Call) else None
    given = sampler_of(loader.site) if isinstance(loader.site, ast.Call) else None
    if located is not None and given is not None:
        yield from (item.site for item in own.program.flow.values(given, located[1]) if item.site is not None)
