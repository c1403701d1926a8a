"""Collective operations that one process runs alone: the others never come, or come to another one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import in_several
from amp_rules.checks.common.waiting_calls import asks_for_rank, is_collective, is_counterpart
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.program import Program
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name
from amp_rules.torch.distributed import BARRIERS, EXCHANGES

_MAX_CALLS = 3
"""Functions within functions between a call and the operation: ``log``, ``reduce_dict``, ``all_reduce``."""


def exchanged_by_one(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield such operations, and calls that lead to one: the first of each function."""
    if not own.program.calls_to(EXCHANGES | BARRIERS):
        return
    waiting = _Waiting(own)
    told: set[ast.AST] = set()
    for call, body, scope in own.program.calls():
        module = scope.module
        if module not in own.modules or body in told or body in own.uncalled:
            continue
        facts = own.facts(module)
        branches = list(own.branches(module, call))
        tests = [branch for branch in branches if asks_for_rank(facts, *branch)]
        if len(tests) != 1 or not waiting.at(call, module) or not own.is_of_first_alone(module, call):
            continue
        others = [other for other in waiting.of(body, module) if not own.is_of_first_alone(module, other)]
        if any(is_counterpart(facts, call, tests[0], other) for other in others if _may_pair(own, call, other, module)):
            continue
        told.add(body)
        test = f"`{module.text(tests[0][0])}`"
        yield (
            module,
            call,
            f"`{module.text(call)}` waits for all processes, and under {test} only some of them come there",
        )


def _may_pair(own: OwnDdp, call: ast.Call, other: ast.Call, module: Module) -> bool:
    """Whether two calls stand in the branches of one test, or are of the same operation at two places."""
    asked = {ast.unparse(test) for test, _ in own.branches(module, call)}
    if any(ast.unparse(test) in asked for test, _ in own.branches(module, other)):
        return True
    return last_name(call.func) == last_name(other.func)


class _Waiting:
    """Which calls wait for all processes whenever there are several."""

    def __init__(self, own: OwnDdp) -> None:
        self._own = own
        self._program: Program = own.program
        self._known: dict[tuple[ast.AST, int], bool] = {}

    def at(self, call: ast.Call, module: Module) -> bool:
        """Whether a call is a collective operation, or runs a function that always comes to one."""
        if is_collective(self._own.facts(module), call):
            return True
        callees = self._program.flow.callees(call)
        return bool(callees) and all(self._waits(info, _MAX_CALLS) for info in callees)

    def of(self, body: ast.AST, module: Module) -> list[ast.Call]:
        """The calls of a function that wait."""
        return [node for node in self._program.nodes_of(body) if isinstance(node, ast.Call) and self.at(node, module)]

    def _waits(self, info: FunctionFacts, depth: int) -> bool:
        key = (info.node, depth)
        if key not in self._known:
            self._known[key] = False
            self._known[key] = self._comes_to_one(info, depth)
        return self._known[key]

    def _comes_to_one(self, info: FunctionFacts, depth: int) -> bool:
        module = info.module.module
        for node in self._program.nodes_of(info.node):
            if not isinstance(node, ast.Call):
                continue
            waits = is_collective(self._own.facts(module), node)
            if not waits and depth:
                callees = self._program.flow.callees(node)
                waits = bool(callees) and all(self._waits(item, depth - 1) for item in callees)
            if waits and all(in_several(test) is holds for test, holds in self._own.branches(module, node)):
                return True
        return False
