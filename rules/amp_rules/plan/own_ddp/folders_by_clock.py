"""Folders that every process names by its own clock, or by an identifier that it draws."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.file_names import more_places
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.spawned import Spawned
from amp_rules.roles.absent import never_runs
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.made_folders import folder_made
from amp_rules.roles.sites import Site
from amp_rules.source.modules import Module
from amp_rules.torch.distributed import BROADCASTS
from amp_rules.torch.file_access import OF_THIS_PROCESS
from amp_rules.torch.replication import CLOCKS
from amp_rules.torch.writers import WRITERS


def folders_by_clock(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such folder; a time that one process tells the others, or hands to those it starts, is theirs."""
    program = own.program
    has_clock, has_identifier = bool(program.calls_to(CLOCKS)), bool(program.calls_to(OF_THIS_PROCESS))
    if not own.wraps or not (has_clock or has_identifier) or program.calls_to(BROADCASTS) or Spawned(own):
        return
    paths = Paths(program)
    found = []
    for call, body, scope in program.calls():
        if scope.module not in own.modules or body in own.uncalled or program.callee_names(call, scope) & WRITERS:
            continue  # a writer is left to the first process
        folder = folder_made(program, call, scope)
        if folder is None or not paths.is_of_this_moment(folder, scope) or own.is_own_file(scope.module, call):
            continue
        if own.reach(scope.module, call) is Reach.EVERY and not never_runs(program.flow, scope.module, call):
            found.append(Site(scope.module, scope, body, call))
    for site in found[:1]:
        others = more_places(own.program, [(item.module, item.node) for item in found])
        yield site.module, site.node, _text(site, has_clock, has_identifier) + others


def _text(site: Site, has_clock: bool, has_identifier: bool) -> str:
    folder = f"each process names the folder of `{site.module.text(site.node)}` by"
    finds = "do not find there what the first process writes; tell all of them"
    if not has_clock:
        return f"{folder} an identifier of its own: each has another folder, and the others {finds} that of one"
    if has_identifier:
        return (
            f"{folder} its own clock, or by an identifier of its own: those that get another one have another folder, "
            f"and {finds} that of one"
        )
    return f"{folder} its own clock: those that read another time have another folder, and {finds} the time of one"
