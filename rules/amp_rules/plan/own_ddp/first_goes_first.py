"""Files that the first process makes while the others wait, and that those find: ``with zero_first(rank): ...``."""

from __future__ import annotations

import ast

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.flow.statements import is_main_guard
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.distributed import BARRIERS
from amp_rules.torch.file_access import LOOKS

_MAX_CALLERS = 4
"""Calls between such a block and what writes in it: a class that is made, its ``__init__``, a method of it."""


def is_made_by_first(own: OwnDdp, module: Module, node: ast.AST) -> bool:
    """Whether a place that writes a file stands under a look for one, and the first process alone comes there first."""
    located = own.program.locate(node)
    if located is None:
        return False
    site = Site(module, located[1], located[0], node)
    return _is_under_look(own, site) and _is_in_turns(own, site, frozenset())


def _is_under_look(own: OwnDdp, site: Site) -> bool:
    """Whether a test around a place asks whether a file is there; whoever finds it does not write."""
    return any(
        isinstance(part, ast.Call) and bool(own.program.callee_names(part, site.scope) & LOOKS)
        for test, _ in own.branches(site.module, site.node)
        for part in walk(test)
    )


def _is_in_turns(own: OwnDdp, site: Site, seen: frozenset[ast.AST]) -> bool:
    for item in blocks.enclosing(site.module, site.node):
        if isinstance(item, (ast.With, ast.AsyncWith)):
            if any(_lets_first_go(own, given.context_expr) for given in item.items):
                return True
    info = own.program.function_of(site.body)
    if info is None or site.body in seen or len(seen) > _MAX_CALLERS:
        return False
    callers = [calling(item) for item in own.program.flow.callers(info)]
    callers = [item for item in callers if item.body not in own.uncalled and not _is_guarded(own, item)]
    return bool(callers) and all(_is_in_turns(own, item, seen | {site.body}) for item in callers)


def _is_guarded(own: OwnDdp, site: Site) -> bool:
    """Whether a place is what another file does as a script."""
    return site.module is not own.program.entry and any(
        isinstance(item, ast.If) and is_main_guard(item) for item in blocks.enclosing(site.module, site.node)
    )


def _lets_first_go(own: OwnDdp, given: ast.expr) -> bool:
    """Whether the others wait where a block begins: a barrier above the ``yield``, under a test of the rank."""
    barriers = {site.node for site in own.program.calls_to(BARRIERS)}
    for info in own.program.flow.callees(given) if isinstance(given, ast.Call) else ():
        yields = [node.lineno for node in walk(info.node) if isinstance(node, ast.Yield)]
        for node in walk(info.node):
            if isinstance(node, ast.If) and names_rank(node.test) and yields and node.lineno < min(yields):
                if not barriers.isdisjoint(walk(node)):
                    return True
    return False
