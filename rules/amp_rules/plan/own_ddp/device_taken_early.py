"""Devices that are named after the current GPU, above the line that makes another one current."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.earlier import Earlier
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name
from amp_rules.torch.devices import CHOOSING, DEVICE, SET_DEVICE

_CURRENT = frozenset({"torch.cuda.current_device"})
_NAMING = frozenset({"format", "str", DEVICE.rpartition(".")[2]})
"""Calls that make a device, or its name, of a number."""


def device_taken_early(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such device: it is GPU 0 in every process of a machine."""
    chosen = [site for site in own.program.calls_to(frozenset({SET_DEVICE})) if site.body not in own.uncalled]
    if not chosen or any("CUDA_VISIBLE_DEVICES" in item.source.text for item in own.modules):
        return
    if len(own.program.calls_to(CHOOSING)) > len(own.program.calls_to(frozenset({SET_DEVICE}))):
        return  # a context or a default chooses, too
    later = [Earlier(own.program, site) for site in chosen]
    for site in own.program.calls_to(_CURRENT):
        if site.module not in own.modules or site.body in own.uncalled or not _is_kept(site):
            continue
        if own.reach(site.module, site.node) is not Reach.EVERY or own.is_of_first_alone(site.module, site.node):
            continue
        if all(item.runs(site) for item in later) and not any(own.contradict(site, item) for item in chosen):
            text = (
                f"`{site.module.text(site.node)}` is 0 in every process of a machine here: another GPU is chosen only "
                f"at {own.place(chosen[0].module, chosen[0].node)}; choose it above"
            )
            yield site.module, site.node, text
            return


def _is_kept(site: Site) -> bool:
    """Whether a variable holds the number, or a device or its name that is made of it."""
    for item in site.module.ancestors(site.node):
        if isinstance(item, ast.Call) and last_name(item.func) not in _NAMING:
            return False
        if isinstance(item, ast.stmt):
            return isinstance(item, (ast.Assign, ast.AnnAssign))
    return False
