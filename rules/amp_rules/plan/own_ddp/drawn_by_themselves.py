"""Data that each process draws by a generator which it seeds by itself, before samplers share its places out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.orders_apart import SharedData
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.ranks_of_options import defaults_of
from amp_rules.roles.sites import Site, calling
from amp_rules.source.index import argument_at
from amp_rules.source.modules import Module
from amp_rules.source.syntax import is_none
from amp_rules.torch.replication import SEEDED_BY_CONSTRUCTOR

_MAX_CALLERS = 3
"""Functions that hand a seed on to the class of the data."""


def drawn_by_themselves(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first generator without a seed by which a data set draws what it gives by its place."""
    data: SharedData | None = None
    for site in own.program.calls_to(SEEDED_BY_CONSTRUCTOR):
        if site.module not in own.modules or site.body in own.uncalled or not isinstance(site.node, ast.Call):
            continue
        given = argument_at(site.node, "seed", 0)
        is_without = not site.node.args and not site.node.keywords
        left_out = "" if is_without else _left_out(own, given, site, _MAX_CALLERS)
        if left_out is None or own.reach(site.module, site.node) is not Reach.EVERY:
            continue
        data = data or SharedData(own)
        if data.takes(site):
            unless = f", unless `{left_out}` is given," if left_out else ""
            text = (
                f"`{site.module.text(site.node)}` seeds itself in each process{unless} and the data is drawn by it: "
                "what a place of it gives is not alike in all processes; give it one seed for all"
            )
            yield site.module, site.node, text
            return


def _left_out(own: OwnDdp, given: ast.expr | None, site: Site, depth: int) -> str | None:
    """The option that a seed is, None by default; empty where it is None itself, and None where that is not known."""
    if given is None:
        return None
    if is_none(given):
        return ""
    if isinstance(given, ast.Attribute):
        defaults = defaults_of(own.program, given.attr)
        return own.source(site.module, given) if defaults and all(item is None for item in defaults) else None
    info = own.program.function_of(site.body)
    if not isinstance(given, ast.Name) or info is None or given.id not in info.parameters or not depth:
        return None
    if any(isinstance(n, ast.Name) and n.id == given.id and not isinstance(n.ctx, ast.Load) for n in info.nodes):
        return None
    found = [
        _left_out(own, info.argument_or_default(caller.call, given.id), calling(caller), depth - 1)
        for caller in own.program.flow.callers(info)
    ]
    known = [item for item in found if item is not None]
    return max(known) if known and len(known) == len(found) else None
