"""Collective operations that one process runs alone: the others never come, or come to another one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.waiting_calls import asks_for_rank, is_counterpart
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name
from amp_rules.torch.distributed import BARRIERS, EXCHANGES


def exchanged_by_one(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield such operations, and calls that lead to one: the first of each function."""
    if not own.program.calls_to(EXCHANGES | BARRIERS):
        return
    told: set[ast.AST] = set()
    for call, body, scope in own.program.calls():
        module = scope.module
        if module not in own.modules or body in told or body in own.uncalled:
            continue
        facts = own.facts(module)
        branches = list(own.branches(module, call))
        tests = [branch for branch in branches if asks_for_rank(facts, *branch)]
        if len(tests) != 1 or not own.waiting.at(call, module) or not own.is_of_first_alone(module, call):
            continue
        others = [other for other in own.waiting.of(body, module) if not own.is_of_first_alone(module, other)]
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
