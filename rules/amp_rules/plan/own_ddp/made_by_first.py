"""Files that the first process makes before the others look for them, so that those find them.

It runs a function, and a barrier follows; or the others wait where a block begins: ``with zero_first(rank): ...``; or
they wait at a barrier above, and it comes to one below.
"""

from __future__ import annotations

import ast

from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.flow.statements import is_under_main_guard
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_tests import is_of_first
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.distributed import BARRIERS
from amp_rules.torch.file_access import LOOKS

_MAX_CALLERS = 4
"""Calls between the look for a file and what lets one process go first: a class that is made, a method of it."""


def is_made_by_first(own: OwnDdp, module: Module, node: ast.AST) -> bool:
    """Whether the others find what is written at a place where the file is missing alone: ``if not exists(path):``."""
    located = own.program.locate(node)
    if located is None:
        return False
    site = Site(module, located[1], located[0], node)
    if _is_where_missing(own, module, node) and _goes_first(own, site, _MAX_CALLERS):
        return True
    return _is_under_look(own, site) and is_in_turns(own, site)


def _is_where_missing(own: OwnDdp, module: Module, node: ast.AST) -> bool:
    inner: ast.AST = node
    for parent in blocks.enclosing(module, node):
        if isinstance(parent, blocks.BODIES):
            return False
        if isinstance(parent, ast.If):
            test, is_other = parent.test, inner in parent.orelse
            is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
            looked = test.operand if isinstance(test, ast.UnaryOp) else test
            located = own.program.locate(looked) if isinstance(looked, ast.Call) else None
            if located is not None and is_not is not is_other:
                if own.program.callee_names(looked, located[1]) & LOOKS:  # type: ignore[arg-type]
                    return True
        inner = parent
    return False


def _goes_first(own: OwnDdp, place: Site, depth: int) -> bool:
    """Whether a caller has one process run a function, and all of them again behind a barrier."""
    info = own.program.function_of(place.body)
    if info is None or depth == 0:
        return False
    callers = [calling(item) for item in own.program.flow.callers(info)]
    calls = {item.node for item in callers}
    runs = own.program.closure(lambda node: node in calls)
    barriers = {site.node for site in own.program.calls_to(BARRIERS)}
    waits = own.program.closure(lambda node: node in barriers)
    for item in callers:
        for parent in blocks.enclosing(item.module, item.node):
            if not isinstance(parent, ast.If) or not own.parts_first(item.module, parent):
                continue
            if not any(node is item.node for part in parent.body for node in walk(part)):
                continue
            waited = False
            for suite, index in blocks.suites_around(item.module, parent):
                for statement in suite[index + 1 :]:
                    if waited and runs(statement):
                        return True
                    waited = waited or waits(statement)
    return any(_goes_first(own, item, depth - 1) for item in callers)


def _is_under_look(own: OwnDdp, site: Site) -> bool:
    """Whether a test around a place asks whether a file is there; whoever finds it does not write."""
    return any(
        isinstance(part, ast.Call) and bool(own.program.callee_names(part, site.scope) & LOOKS)
        for test, _ in own.branches(site.module, site.node)
        for part in walk(test)
    )


def is_in_turns(own: OwnDdp, site: Site, seen: frozenset[ast.AST] = frozenset()) -> bool:
    """Whether the first process comes to a place before the others, on all ways that lead there."""
    for item in blocks.enclosing(site.module, site.node):
        if isinstance(item, (ast.With, ast.AsyncWith)):
            if any(_lets_first_go(own, given.context_expr) for given in item.items):
                return True
    if own.is_of_first_alone(site.module, site.node) or _is_between_barriers(own, site):
        return True
    info = own.program.function_of(site.body)
    if info is None or site.body in seen or len(seen) > _MAX_CALLERS:
        return False
    callers = [calling(item) for item in own.program.flow.callers(info)]
    callers = [item for item in callers if item.body not in own.uncalled and not _is_guarded(own, item)]
    in_turns = [item for item in callers if is_in_turns(own, item, seen | {site.body})]
    return bool(callers) and all(
        item in in_turns or any(_is_asked_again(own, one, item) for one in in_turns) for item in callers
    )


def _is_asked_again(own: OwnDdp, first: Site, again: Site) -> bool:
    """Whether a call comes below another of its function, in the same suite or within, with the same first argument.

    The file that the other makes is there then: ``Net.from_pretrained(args.model)``.
    """
    one, other = first.node, again.node
    if not (isinstance(one, ast.Call) and isinstance(other, ast.Call) and one.args and other.args):
        return False
    if first.body is not again.body or ast.unparse(one.args[0]) != ast.unparse(other.args[0]):
        return False
    return first.statement in blocks.statements_above(again.module, again.statement, again.body)


def _is_between_barriers(own: OwnDdp, site: Site) -> bool:
    """Whether the others wait at a barrier above a place, and the first process comes to one below it."""
    barriers = {item.node for item in own.program.calls_to(BARRIERS)}

    def waits(item: ast.stmt, *, first: bool) -> bool:
        if not isinstance(item, ast.If) or item.orelse or not own.tells_apart(site.module, item.test):
            return False
        return is_of_first(item.test, first) and any(not barriers.isdisjoint(walk(part)) for part in item.body)

    for suite, index in blocks.suites_around(site.module, site.statement):
        above = any(waits(item, first=False) for item in suite[:index])
        if above and any(waits(item, first=True) for item in suite[index + 1 :]):
            return True
    return False


def _is_guarded(own: OwnDdp, site: Site) -> bool:
    """Whether a place is what another file does as a script."""
    return site.module is not own.program.entry and is_under_main_guard(site.module, site.node)


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
