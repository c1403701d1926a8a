"""Seeds of a process that starts the others and trains nothing: they start with generators of their own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.spawned import Spawned
from amp_rules.roles.workers import training_workers
from amp_rules.source import blocks
from amp_rules.source.index import keyword
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name
from amp_rules.torch.distributed import SPAWNS
from amp_rules.torch.replication import SEEDS


def seeds_above(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such seed above each call that spawns, where nothing seeds what it runs."""
    seeds = [site for site in own.program.calls_to(SEEDS) if site.body not in own.uncalled]
    spawns = {site.node for site in own.program.calls_to(SPAWNS)} if seeds else set()
    for site, info in training_workers(own.program) if spawns else ():
        if site.node not in spawns or site.module not in own.modules or isinstance(site.body, ast.Module):
            continue
        assert isinstance(site.node, ast.Call)
        if keyword(site.node, "start_method") is not None:
            continue  # what is forked off goes on with the generators as they are
        below = {info.node} | own.program.called_from(blocks.walk_body(info.node))
        if _seeds_in(own, below):
            continue
        above = (item for item in seeds if item.body is site.body and item.line < site.line)
        first = min(above, key=lambda item: item.line, default=None)
        if first is not None and not Spawned(own).is_beside(first):
            text = (
                f"`{first.module.text(first.node)}` seeds only the process that starts the others: what "
                f"`{info.name}` draws in those does not depend on it; seed there, too"
            )
            yield first.module, first.node, text
            return


def _seeds_in(own: OwnDdp, bodies: set[ast.AST]) -> bool:
    """Whether something in some functions may seed, a function of a library by its name too."""
    return any(
        "seed" in last_name(call.func).lower() or any("seed" in (item.arg or "") for item in call.keywords)
        for call, body, _ in own.program.calls()
        if body in bodies
    )
