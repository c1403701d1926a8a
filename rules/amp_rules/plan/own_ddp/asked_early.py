"""Tests for the first process that stand above the process group, where they hold in every process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_tests import is_of_first
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name

_SHOWS = frozenset("print pprint info debug warning log".split())


def asked_early(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first test that keeps more than a message from the others, as it is meant to."""
    for node, _, scope in own.program.nodes():
        module = scope.module
        if not isinstance(node, ast.If) or module not in own.modules or not own.asks_torch(node.test):
            continue
        if not own.tells_apart(module, node.test) or not is_of_first(node.test, True):
            continue
        if own.holds_on_all(module, node) and not all(map(_only_shows, node.body)):
            test = f"`{module.text(node.test)}`"
            text = "holds in every process here, above the process group: put what it is for below"
            yield module, node.test, f"{test} {text}"
            return


def _only_shows(statement: ast.stmt) -> bool:
    return not blocks.writes(statement) and all(
        last_name(node.func) in _SHOWS or last_name(node.func) == "format"
        for node in blocks.walk_own(statement)
        if isinstance(node, ast.Call)
    )
