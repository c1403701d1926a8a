"""Barriers under a look for a file that the first process writes there: who looks late does not come to them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.distributed import BARRIERS
from amp_rules.torch.file_access import LOOKS


def waits_by_a_look(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield such barriers."""
    for site in own.program.calls_to(BARRIERS):
        if site.module not in own.modules or site.body in own.uncalled:
            continue
        branch = _look_around(own, site)
        if branch is not None:
            test = site.module.text(branch.test)
            text = (
                f"`{site.module.text(site.node)}` stands under `{test}`, and one process makes the file there: a "
                "process that looks once it is made does not come here, and the others wait for it"
            )
            yield site.module, site.node, text


def _look_around(own: OwnDdp, barrier: Site) -> ast.If | None:
    """The ``if`` around a barrier that looks for a file, and has a branch of one process above the barrier."""
    module = barrier.module
    for item in blocks.enclosing(module, barrier.node):
        if isinstance(item, blocks.BODIES):
            return None
        if not isinstance(item, ast.If) or names_rank(item.test) or not _looks(own.program, item.test, barrier.scope):
            continue
        if not any(node is barrier.node for part in item.body for node in walk(part)):
            continue
        for part in item.body:
            if any(node is barrier.node for node in walk(part)):
                return None
            if isinstance(part, ast.If) and own.parts_first(module, part):
                return item
    return None


def _looks(program: Program, test: ast.expr, scope: Scope) -> bool:
    return any(isinstance(node, ast.Call) and bool(program.callee_names(node, scope) & LOOKS) for node in walk(test))
