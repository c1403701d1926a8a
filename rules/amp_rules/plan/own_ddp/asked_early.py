"""What is asked above the process group, where each process is the first one there, and the only one."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_tests import is_of_first
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name
from amp_rules.torch.distributed import GETS_WORLD_SIZE

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


def counted_early(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first number of processes that is reckoned with where a helper says 1, as there is no group yet."""
    sizes = {site.node for site in own.program.calls_to(GETS_WORLD_SIZE)}
    for call, body, scope in own.program.calls():
        module = scope.module
        callees = own.program.flow.callees(call)
        # torch's own function raises an error without a group.
        if module not in own.modules or not callees or not own.asks_torch(call):
            continue
        if not all(_gives_size(info.returns, sizes) for info in callees):
            continue
        if _reckons(module, body, call) and own.joins_below(module, call):
            text = "is 1 in every process here, above the process group: ask for it below"
            yield module, call, f"`{module.text(call)}` {text}"
            return


def _gives_size(returns: Iterable[ast.AST], sizes: set[ast.AST]) -> bool:
    """Whether what a function gives is torch's number of processes, and a number without a group."""
    found = list(returns)
    asked = [item for item in found if item in sizes]
    return bool(asked) and all(item in sizes or (isinstance(item, ast.Constant) and item.value == 1) for item in found)


def _reckons(module: Module, body: ast.AST, call: ast.Call) -> bool:
    """Whether something is computed with a number here, or with the variable that holds it and nothing else."""
    if isinstance(module.parents[call], ast.BinOp):
        return True
    statement = module.parents[call]
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if not isinstance(target, ast.Name):
        return False
    nodes = [item for item in blocks.walk_body(body) if isinstance(item, ast.Name) and item.id == target.id]
    if sum(isinstance(item.ctx, ast.Store) for item in nodes) > 1:
        return False
    return any(isinstance(module.parents[item], ast.BinOp) for item in nodes if isinstance(item.ctx, ast.Load))


def _only_shows(statement: ast.stmt) -> bool:
    return not blocks.writes(statement) and all(
        last_name(node.func) in _SHOWS or last_name(node.func) == "format"
        for node in blocks.walk_own(statement)
        if isinstance(node, ast.Call)
    )
