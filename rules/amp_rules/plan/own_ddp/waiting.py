"""Calls of a script that wait for all processes, themselves or in a function that they run."""

from __future__ import annotations

import ast

from amp_rules.checks.common.rank_branches import in_several
from amp_rules.checks.common.waiting_calls import is_collective
from amp_rules.plan.own_ddp.group import OwnGroup
from amp_rules.roles.program import Program
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module

_MAX_CALLS = 3
"""Functions within functions between a call and the operation: ``log``, ``reduce_dict``, ``all_reduce``."""


class Waiting:
    """Which calls wait for all processes whenever there are several."""

    def __init__(self, own: OwnGroup) -> None:
        self._own = own
        self._program: Program = own.program
        self._known: dict[tuple[ast.AST, int], bool] = {}

    def at(self, call: ast.Call, module: Module) -> bool:
        """Whether a call is a collective operation, or runs a function that always comes to one."""
        return self._at(call, module, _MAX_CALLS)

    def of(self, body: ast.AST, module: Module) -> list[ast.Call]:
        """The calls of a function that wait."""
        return [node for node in self._program.nodes_of(body) if isinstance(node, ast.Call) and self.at(node, module)]

    def _at(self, call: ast.Call, module: Module, depth: int) -> bool:
        if is_collective(self._own.facts(module), call):
            return True
        callees = self._program.flow.callees(call) if depth >= 0 else ()
        return bool(callees) and all(self._waits(info, depth) for info in callees)

    def _waits(self, info: FunctionFacts, depth: int) -> bool:
        key = (info.node, depth)
        if key not in self._known:
            self._known[key] = self._comes_to_one(info, depth)
        return self._known[key]

    def _comes_to_one(self, info: FunctionFacts, depth: int) -> bool:
        module = info.module.module
        return any(
            self._at(node, module, depth - 1)
            and all(in_several(test) is holds for test, holds in self._own.branches(module, node))
            for node in self._program.nodes_of(info.node)
            if isinstance(node, ast.Call)
        )
