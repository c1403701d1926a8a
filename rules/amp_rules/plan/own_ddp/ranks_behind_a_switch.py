"""Ranks that are asked for only with a switch of the command line, without which the processes join as well."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.switches import off_unless_given
from amp_rules.roles.sites import Site, calling
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import conjuncts, last_name, walk
from amp_rules.torch.distributed import GETS_RANK

_MAX_CALLERS = 4
"""Functions between the call that joins and the test under which it is made."""


def ranks_behind_a_switch(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield ``if args.distributed: rank = dist.get_rank() else: rank = 0``, where nothing else reads the switch."""
    switches = off_unless_given(own) if own.joins else {}
    asked = {name for site in own.joins for name in _asked_for(own, site, _MAX_CALLERS)} if switches else set()
    for node, _, scope in own.program.nodes() if switches.keys() - asked else ():
        if not isinstance(node, ast.If) or scope.module not in own.modules:
            continue
        name = next((last_name(part) for part in conjuncts(node.test) if last_name(part) in switches), None)
        if name is None or name in asked or not _takes_one_for_first(node.orelse):
            continue
        calls = [part for item in node.body for part in walk(item) if isinstance(part, ast.Call)]
        if not any(own.program.callee_names(call, scope) & GETS_RANK for call in calls):
            continue
        if own.reach(scope.module, node) is Reach.EVERY:
            option = switches[name]
            text = (
                f"every process takes itself for the first where `{option}` is not given, and the processes join "
                f"without it: all then do what one alone is to do; start them with `{option}`, or ask "
                "`torch.distributed.is_initialized()` here"
            )
            yield scope.module, node, text
            return


def _asked_for(own: OwnDdp, site: Site, depth: int) -> Iterator[str]:
    """Yield the names in the tests under which a call is made, in its function and in those that call it."""
    for test, _ in own.branches(site.module, site.node):
        yield from (last_name(part) for part in walk(test))
    info = own.program.function_of(site.body)
    for caller in own.program.flow.callers(info) if info is not None and depth else ():
        yield from _asked_for(own, calling(caller), depth - 1)


def _takes_one_for_first(suite: list[ast.stmt]) -> bool:
    """``rank = 0``, ``is_first = True``."""
    return bool(suite) and all(
        isinstance(item, ast.Assign) and (literal(item.value) is True or literal(item.value) == 0) for item in suite
    )
