"""Processes that a script spawns once it has joined itself: they start anew, and join none."""

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
from amp_rules.torch.idioms import NAMED_JOIN


def spawned_alone(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the call that spawns processes which wrap a model, where only the process above it joins."""
    spawns = {site.node for site in own.program.calls_to(SPAWNS)} if own.wraps and own.joins else set()
    if not spawns:
        return
    spawned = Spawned(own)
    for site, info in training_workers(own.program):
        if site.node not in spawns or site.module not in own.modules or not isinstance(site.node, ast.Call):
            continue
        if keyword(site.node, "start_method") is not None:
            continue
        below = {info.node} | own.program.called_from(blocks.walk_body(info.node))
        if any(spawned.run(join) or join.body is not site.body for join in own.joins) or _may_join(own, below):
            continue
        wrap = next((item for item in own.wraps if item.body in below), None)
        if wrap is not None:
            join = own.joins[0]
            text = (
                f"the processes that this starts join no group: `{join.module.text(join.node)}` runs only in the one "
                f"that starts them, and `{wrap.module.text(wrap.node)}` raises without one; join at the top of "
                f"`{info.name}`, by its rank"
            )
            yield site.module, site.node, text
            return


def _may_join(own: OwnDdp, bodies: set[ast.AST]) -> bool:
    """Whether some functions call what may join a group by its name, in a file that was not found."""
    return any(body in bodies and NAMED_JOIN.search(last_name(call.func)) for call, body, _ in own.program.calls())
