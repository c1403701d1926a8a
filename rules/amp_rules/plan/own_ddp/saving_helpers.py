"""Helpers that write several files, and that the script calls on the first process already: all their calls are so."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Sequence

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.torch.distributed import BARRIERS, EXCHANGES, JOINS, LEAVES

_Row = tuple[Module, ast.stmt]

_OF_ALL = EXCHANGES | BARRIERS | JOINS | LEAVES


def by_calls(own: OwnDdp, rows: Sequence[_Row]) -> dict[ast.AST, list[_Row]]:
    """The calls that every process makes, by the helpers that they call: one test at each of them does for the helper.

    A helper stays on all processes where it does more than to write: changes what it is given, or waits for others.
    """
    of_body: defaultdict[ast.AST, list[_Row]] = defaultdict(list)
    for module, statement in rows:
        of_body[blocks.body_of(module, statement)].append((module, statement))
    waiting = {site.node for site in own.program.calls_to(_OF_ALL)}
    waits = own.program.closure(lambda node: node in waiting)
    found = {}
    for body, written in of_body.items():
        info = own.program.function_of(body)
        if info is None or len(written) < 2 or waits(body) or own.program.runs_step(body) or _changes(info):
            continue
        calls = _open_calls(own, info)
        if calls and len(calls) < len(written):
            found[body] = calls
    return found


def _open_calls(own: OwnDdp, info: FunctionFacts) -> list[_Row]:
    """The calls that no test keeps from a process, where one does beside them, and none wants a result."""
    callers = own.program.flow.callers(info)
    sites = [(item.scope.module, item.scope.module.parents[item.call], item.call) for item in callers]
    if not all(isinstance(parent, ast.Expr) for _, parent, _ in sites):
        return []
    reached = [own.reach(module, call) for module, _, call in sites]
    if not any(item in (Reach.ONE, Reach.EACH_NODE) for item in reached) or Reach.UNKNOWN in reached:
        return []
    return [
        (module, parent)
        for (module, parent, _), reach in zip(sites, reached, strict=True)
        if reach is Reach.EVERY and isinstance(parent, ast.stmt)
    ]


def _changes(info: FunctionFacts) -> bool:
    """Whether a helper changes something that is not its own."""
    given = set(info.parameters)
    for node in blocks.walk_body(info.node):
        if isinstance(node, (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom)):
            return True
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if blocks.path_of(node.value) in given:
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
            if blocks.path_of(node.func.value) in given:
                return True
    return False


_CHANGING = frozenset("append extend insert update add remove pop clear reset step load_state_dict train eval".split())
"""Methods that change what they are called on."""
