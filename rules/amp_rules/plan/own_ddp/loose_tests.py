"""Files that every process writes though a test around them asks for the rank: it asks only in some runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import in_several, names_rank
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.ranks_behind_a_switch import ranks_behind_a_switch
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

_Found = tuple[Module, ast.AST, str]


def loose_tests(own: OwnDdp) -> Iterator[_Found]:
    """Yield what writes such a file, and why it does on every process."""
    yield from _behind_or(own)
    yield from _called_behind_or(own)
    yield from _in_other_modes(own)
    yield from ranks_behind_a_switch(own)


def _behind_or(own: OwnDdp) -> Iterator[_Found]:
    """Yield ``if not best or loss < best and rank == 0:``: every process writes where the first part holds."""
    for call, _, scope in own.program.calls():
        module = scope.module
        if module not in own.modules or not own.saves(module, call) or own.is_own_file(module, call):
            continue
        for test, holds in own.branches(module, call):
            if holds and (part := _open_part(test)) is not None:
                text = (
                    f"every process runs `{module.text(call)}` where `{module.text(part)}`: the test asks for the rank"
                )
                yield module, call, f"{text} only behind `or`"
                break


def _called_behind_or(own: OwnDdp) -> Iterator[_Found]:
    """Yield the first call under such a test of a function of the project that writes a file in every process."""
    tests = [
        (node, part, scope.module)
        for node, _, scope in own.program.nodes()
        if isinstance(node, ast.If) and scope.module in own.modules and (part := _open_part(node.test)) is not None
    ]
    saving = {
        call
        for call, _, scope in (own.program.calls() if tests else ())
        if own.saves(scope.module, call)
        and not own.is_own_file(scope.module, call)
        and not _asks_for_rank(own, scope.module, call)
    }
    saves = own.program.closure(lambda node: node in saving)
    for node, part, module in tests:
        for call in (item for statement in node.body for item in walk(statement) if isinstance(item, ast.Call)):
            if call not in saving and saves(call) and not _asks_for_rank(own, module, call, node.test):
                text = f"every process runs `{module.text(call)}`, which writes a file, where `{module.text(part)}`"
                yield module, call, f"{text}: the test asks for the rank only behind `or`"
                return


def _asks_for_rank(own: OwnDdp, module: Module, call: ast.Call, beside: ast.expr | None = None) -> bool:
    """Whether a test within the function, beside one that is known, may keep processes from a place."""
    return any(test is not beside and names_rank(test) for test, _ in own.branches(module, call))


def _in_other_modes(own: OwnDdp) -> Iterator[_Found]:
    """Yield ``if not spawned or rank == 0:`` around a file, where ``distributed = several or spawned`` joins too."""
    modes = dict(_modes(own))
    saving = {call for call, _, scope in own.program.calls() if own.saves(scope.module, call)} if modes else set()
    saves = own.program.closure(lambda node: node in saving)
    for node, _, scope in own.program.nodes() if saving else ():
        mode = _mode_without_rank(node.test) if isinstance(node, ast.If) else None
        if not isinstance(node, ast.If) or mode not in modes or scope.module not in own.modules:
            continue
        first = next((item for item in node.body if saves(item)), None)
        if first is not None:
            text = (
                f"every process writes this file where `{modes[mode]}` lets them join without `{mode}`: the test asks "
                "for the rank only with it"
            )
            yield scope.module, first, text
            return


def _modes(own: OwnDdp) -> Iterator[tuple[str, str]]:
    """Yield switches that are one of several ways to join, with another of these ways."""
    asked = {
        path
        for site in own.joins
        for test, holds in own.branches(site.module, site.node)
        if holds
        for path in blocks.reads(test)
    }
    for node, _, scope in own.program.nodes():
        if not isinstance(node, ast.Assign):
            continue
        value = node.value
        if not (isinstance(value, ast.BoolOp) and isinstance(value.op, ast.Or) and len(value.values) == 2):
            continue
        if not asked.intersection(blocks.writes(node)):
            continue
        for one, other in (value.values, value.values[::-1]):
            path = blocks.path_of(one) if isinstance(one, (ast.Name, ast.Attribute)) else None
            if path is not None and in_several(other) and not _is_always_on(scope.module, node, path):
                yield path, scope.module.text(other)


def _is_always_on(module: Module, node: ast.stmt, path: str) -> bool:
    """Whether a switch is set to True right above a statement in any case: ``args.spawned = True``."""
    where = blocks.place(module, node)
    for item in reversed(where.suite[: where.index]):
        if path in blocks.writes(item):
            return isinstance(item, ast.Assign) and literal(item.value) is True
    return False


def _mode_without_rank(test: ast.expr) -> str | None:
    """``spawned`` of ``not spawned or (spawned and rank == 0)``."""
    if not (isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) and len(test.values) == 2):
        return None
    for one, other in (test.values, test.values[::-1]):
        if isinstance(one, ast.UnaryOp) and isinstance(one.op, ast.Not) and names_rank(other):
            return blocks.path_of(one.operand)
    return None


def _open_part(test: ast.expr) -> ast.expr | None:
    """The part of a test beside ``or`` that asks for no rank: for a round, or the other asks more of its variable."""
    if not (isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) and len(test.values) == 2):
        return None
    loose, strict = test.values
    if not (isinstance(strict, ast.BoolOp) and isinstance(strict.op, ast.And) and names_rank(strict)):
        return None
    if names_rank(loose) or in_several(loose) is not None:
        return None
    others = [item for item in strict.values if not names_rank(item)]
    if any(ast.unparse(loose) == f"not {ast.unparse(item)}" for item in others):
        return None  # ``not distributed or (distributed and rank == 0)``
    if any(isinstance(item, ast.BinOp) and isinstance(item.op, ast.Mod) for item in walk(loose)):
        return loose  # each n-th round, which says nothing of processes
    return loose if any(blocks.reads(item) & blocks.reads(loose) for item in others) else None
