"""Data that each process splits at random in another way, before samplers give it a share."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.spawned import Spawned
from amp_rules.roles.sites import Site
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, values_given
from amp_rules.torch.data import ARRAY_SPLITS, DISTRIBUTED_SAMPLERS, SPLITS


def splits_apart(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such split."""
    if not own.program.calls_to(DISTRIBUTED_SAMPLERS):
        return  # what lacks a sampler is told there
    for names, seeded_by in ((SPLITS, "generator"), (ARRAY_SPLITS, "random_state")):
        for site in own.program.calls_to(names):
            call = site.node
            assert isinstance(call, ast.Call)
            if site.module not in own.modules or own.reach(site.module, call) is not Reach.EVERY:
                continue
            given = keyword(call, seeded_by)
            if (given is not None and literal(given) is not None) or literal(keyword(call, "shuffle")) is False:
                continue
            if any(item.arg is None for item in call.keywords) or _is_seeded(own):
                continue
            text = (
                f"each process splits the data in another way in `{site.module.text(call)}`: samples that one holds "
                f"back are trained on by others; `{seeded_by}=` with one seed for all makes them alike"
            )
            yield site.module, call, text
            return


def _is_seeded(own: OwnDdp) -> bool:
    """Whether something gives all processes one seed, for all that is known."""
    spawned = Spawned(own)
    # What seeds the process that spawns the others does not seed these.
    goes_on = not spawned or spawned.are_forked
    return any(
        (goes_on or spawned.run(Site(scope.module, scope, body, call))) and not any(map(names_rank, values_given(call)))
        for call, body, scope in own.program.calls()
        if "seed" in last_name(call.func).lower()
    )
