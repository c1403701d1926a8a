"""Schedules that wait for a plateau, and that all but the first process tell None: the result of its evaluation."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import in_several, names_rank
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_tests import is_of_first
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import is_none
from amp_rules.torch.optimizers import PLATEAU

_MAX_NAMES = 4
"""Variables and parameters between what evaluates and what a schedule is told: ``val``, ``scheduler_step(val)``."""


def told_nothing(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield where every process steps such a schedule by what one alone has: the first place for each evaluation."""
    paths, told = Paths(own.program), set[ast.AST]()
    for call, body, scope in own.program.calls():
        module = scope.module
        if module not in own.modules or not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
            continue
        schedules = own.program.flow.values(call.func.value, scope) if len(call.args) == 1 else set()
        if not any(str(value.name).endswith(PLATEAU) for value in schedules):
            continue
        asked = {path for test, _ in own.branches(module, call) for path in blocks.reads(test)}
        if not asked.isdisjoint(blocks.reads(call.args[0])):
            continue  # ``if val is not None: schedule.step(val)``
        for given in _made_by(own, paths, call.args[0], Site(module, scope, body, call)):
            functions = own.program.flow.callees(given)
            if given in told or not functions or not all(_gives_first_alone(own, info) for info in functions):
                continue
            if own.reach(module, call) is not Reach.EVERY:
                continue
            told.add(given)
            located = own.program.locate(given)
            text = located[1].module.text(given) if located is not None else ast.unparse(given)
            yield (
                module,
                call,
                f"`{text}` gives None on all processes but the first, and `{module.text(call)}` is told it: a schedule "
                "that waits for a plateau raises an error there; send them the number of the first",
            )


def _made_by(own: OwnDdp, paths: Paths, node: ast.expr, site: Site) -> Iterator[ast.Call]:
    """Yield the calls that an argument may be the result of."""
    pending, seen = [(node, site.scope, _MAX_NAMES)], {node}
    while pending:
        item, scope, depth = pending.pop(0)
        if isinstance(item, ast.Call):
            yield item
        elif isinstance(item, ast.Name) and depth:
            given = paths.assigned(item, scope)
            above = [value.lineno for value, at in given if at is scope and _is_above(value, item)]
            for value, at in given:
                is_last = at is not scope or not isinstance(value, ast.Call) or value.lineno == max(above, default=0)
                if value not in seen and is_last:
                    seen.add(value)
                    pending.append((value, at, depth - 1))


def _is_above(value: ast.expr, item: ast.expr) -> bool:
    return isinstance(value, ast.Call) and value.lineno < item.lineno


def _gives_first_alone(own: OwnDdp, info: FunctionFacts) -> bool:
    """Whether a function leaves with nothing on all but the first process, and gives that one a value."""
    module = info.module.module
    returns = [node for node in blocks.walk_body(info.node) if isinstance(node, ast.Return)]
    given = [node for node in returns if not _is_empty(node)]
    if not given:
        return False
    leaves = any(_is_empty(node) and _is_on_rank(own, module, node, first=False) for node in returns)
    return leaves or all(_is_on_rank(own, module, node, first=True) for node in given)


def _is_empty(node: ast.Return) -> bool:
    return node.value is None or is_none(node.value)


def _is_on_rank(own: OwnDdp, module: Module, node: ast.AST, *, first: bool) -> bool:
    """Whether a test around a place lets the first process alone go there, or all but the first."""
    return any(
        names_rank(test) and in_several(test) is None and is_of_first(test, holds if first else not holds)
        for test, holds in own.branches(module, node)
    )
