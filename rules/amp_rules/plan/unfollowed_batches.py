"""Loaders that may feed a training step although no loop was found that takes its batches from them."""

from __future__ import annotations

import ast

from amp_rules.roles.batches import TrainingData
from amp_rules.roles.kinds import is_loader_value
from amp_rules.roles.loaders import LoaderUse
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.resolver import names_of
from amp_rules.torch.data import LOADERS_OF_TORCH


def loader_that_may_feed(program: Program, data: TrainingData) -> Site | None:
    """The first call that makes a loader which no evaluation or other step is known to iterate; None without one.

    Its batches may come to the training by ways that are not followed: through a queue, a list, an object of another
    package.
    """
    known = [*data.uses, *(use for use in data.evaluated if _runs_model(program, use))]
    elsewhere = {value for use in known for value in use.values}
    for site in program.calls_to(LOADERS_OF_TORCH):
        assert isinstance(site.node, ast.Call)
        made = {
            value
            for value in program.flow.values(site.node, site.scope)
            if is_loader_value(value) and value.site is site.node
        }
        info = program.function_of(site.body)
        # What one function makes for several callers may be for either.
        is_for_several = info is not None and len(program.flow.callers(info)) > 1
        if made and (is_for_several or elsewhere.isdisjoint(made)):
            return site
    return None if elsewhere else _made_by_partial(program)


def _made_by_partial(program: Program) -> Site | None:
    """The first call that keeps settings for loaders: ``partial(DataLoader, shuffle=True)``, which ``map`` may call."""
    for site in program.calls_to(frozenset({"functools.partial"})):
        assert isinstance(site.node, ast.Call)
        if site.node.args and names_of(site.module).dotted(site.node.args[0]) in LOADERS_OF_TORCH:
            return site
    return None


def _runs_model(program: Program, use: LoaderUse) -> bool:
    """Whether a loop over a loader runs a model: others hand the batches on."""
    around = (item for item in blocks.enclosing(use.module, use.node) if isinstance(item, blocks.LOOPS))
    loop = next(around, None)
    return loop is None or program.runs_model(loop)
