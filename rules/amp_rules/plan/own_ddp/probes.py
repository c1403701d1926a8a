"""Files that each process makes to see whether a folder can be written to, and takes away from the others."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.file_effects import file_effects
from amp_rules.roles.write_probes import may_be_missing, write_probes
from amp_rules.source.modules import Module


def probes_taken_away(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first that fails where another process was faster."""
    effects = file_effects(own.program)
    probes = write_probes(effects)
    for effect in effects:
        if effect.call not in probes or not effect.removes or effect.module not in own.modules:
            continue
        if may_be_missing(effect) or effect.body in own.uncalled:
            continue
        if own.reach(effect.module, effect.call) is Reach.EVERY:
            text = (
                "every process makes this file and takes it away: one that comes later finds none; name it by the rank"
            )
            yield effect.module, effect.call, text
            return
