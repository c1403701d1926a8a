"""Calls that wait for all processes, and tests that let only some of them get there."""

from __future__ import annotations

import ast

from amp_rules.checks.common.origins import origins
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import Branch, keyword
from amp_rules.source.syntax import last_name
from amp_rules.torch.idioms import EXACT_FIRST_RANK, EXACT_RANK

_COLLECTIVES = frozenset(
    """
    barrier all_reduce all_gather all_gather_object all_gather_into_tensor reduce_scatter reduce_scatter_tensor
    all_to_all all_to_all_single broadcast broadcast_object_list reduce gather gather_object scatter
    scatter_object_list monitored_barrier
    """.split()
)
_POSITION_OF_GROUP = {"barrier": 0, "all_reduce": 2, "broadcast": 2, "reduce": 3, "all_gather": 2}


def is_collective(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call is a collective operation of torch on the default group."""
    name = module.dotted(call.func) or ""
    package, _, last = name.rpartition(".")
    return last in _COLLECTIVES and package.startswith("torch.distributed") and not _has_group(call)


def _has_group(call: ast.Call) -> bool:
    place = _POSITION_OF_GROUP.get(last_name(call.func), 3)
    return (
        keyword(call, "group") is not None
        or len(call.args) > place
        or bool(call.keywords and call.keywords[-1].arg is None)
    )


def asks_for_rank(module: ModuleFacts, test: ast.expr, holds: bool, depth: int = 2) -> bool:
    """Whether a test that comes out like this says something of the rank: ``rank == 0``, ``several and rank == 0``."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if holds else ast.Or):
        return any(asks_for_rank(module, item, holds, depth) for item in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return asks_for_rank(module, test.operand, not holds, depth)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.Gt)):
        return _is_rank(test.left) and _is_plain(test.comparators[0]) is True
    name = last_name(test.func if isinstance(test, ast.Call) else test)
    if EXACT_FIRST_RANK.search(name) or (EXACT_RANK.search(name) and not isinstance(test, ast.Compare)):
        return True
    if depth and isinstance(test, (ast.Name, ast.Attribute)):
        # ``first = rank == 0``
        values = [item for item in origins(module, test) if item.node is not test]
        return bool(values) and all(
            isinstance(item.node, (ast.Compare, ast.BoolOp)) and asks_for_rank(item.module, item.node, holds, depth - 1)
            for item in values
        )
    return False


def _is_rank(node: ast.expr) -> bool:
    name = last_name(node.func) if isinstance(node, ast.Call) else last_name(node)
    return bool(name and EXACT_RANK.search(name))


def _is_plain(node: ast.expr) -> bool:
    """Whether a rank is compared with a number that is the rank of a process."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value >= 0


def is_counterpart(module: ModuleFacts, call: ast.Call, branch: Branch, other: ast.Call) -> bool:
    """Whether processes that do not get to ``call`` get to ``other`` instead."""
    index = module.index
    if index.scope(other) is not index.scope(call):
        return False
    test, holds = branch
    for item, comes_out in index.branches(other):
        if item is test or ast.unparse(item) == ast.unparse(test):
            return comes_out is not holds
        if asks_for_rank(module, item, comes_out) or "rank" in ast.unparse(item):
            # Another question about the rank: whether the two belong together is not ours to say.
            return True
    return False
